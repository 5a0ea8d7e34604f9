//! Keys in messages.

use super::names::shown;
use super::unit_name::counted;
use throttle::flow::order::Crowd;
use throttle::flow::{Dropped, FIRST_UNITS, News};

/// News in words.
pub(super) fn told(news: &News) -> String {
    match news {
        News::Full(Crowd { units, keys, most }) => {
            let (keys, most) = (counted(*keys, "key"), shown(most));
            format!(
                "all {units} units read ahead wait for {keys}, most for '{most}'; shuffle the input (shuf) or raise --ahead"
            )
        }
        News::NoKeys(per) => {
            let host = if per.to_string() == "host" { "; for names without http:// write per=f1" } else { "" };
            format!("hint: per={per} finds no key in the first {FIRST_UNITS} units, so they share one limit{host}")
        }
        News::Dropped(Dropped { units, keys }) => {
            let units = counted(*units, "unit");
            match (keys.len(), keys.iter().max_by_key(|(_, units)| **units)) {
                (2.., Some((most, _))) => format!("dropped {units} ({} keys, most '{}')", keys.len(), shown(most)),
                (_, Some((key, _))) => format!("dropped {units} (all of '{}')", shown(key)),
                (_, None) => format!("dropped {units}"),
            }
        }
    }
}
