use super::*;
use crate::flow::framing::Framing;
use crate::launch::{Place, Reading};

struct Bytes(Vec<u8>, usize);

impl Source for Bytes {
    fn read(&mut self, space: &mut [u8], _: bool) -> io::Result<Option<usize>> {
        let length = self.0.len().min(space.len()).min(self.1);
        space[..length].copy_from_slice(&self.0[..length]);
        self.0.drain(..length);
        Ok(Some(length))
    }
}

fn template() -> Template {
    let reading = Reading { replace: None, max_args: 1, place: Place::Arguments, columns: None };
    Template::new(&["echo".into()], &reading).unwrap()
}

fn jobs(input: &[u8], size: usize, max_args: u64, to_stdin: bool, skip_blank: bool) -> (Vec<Job>, u64) {
    let shape = Shape { max_args, to_stdin, skip_blank, keep: false };
    jobs_but(None, input, size, shape)
}

/// Returns the units that are not known.
fn jobs_but(known: Option<Known>, input: &[u8], size: usize, shape: Shape) -> (Vec<Job>, u64) {
    let buffer = Buffer::new(Framing::EndedBy(b'\n'), size);
    let (mut jobs, are_known) = (Vec::new(), known.is_some());
    let input = Bytes(input.to_vec(), if size > 1000 { size } else { 7 });
    let mut batches = Batches::new(input, buffer, shape, &template(), known, Look::default());
    while !batches.is_over() {
        batches.fill(true, 0).unwrap();
        jobs.extend(std::iter::from_fn(|| batches.next()));
    }
    (jobs, if are_known { batches.done_before() } else { batches.skipped() })
}

const KEPT: Shape = Shape { max_args: 2, to_stdin: true, skip_blank: true, keep: true };

fn at_hand(job: &Job) -> Vec<&[u8]> {
    job.units.iter().collect()
}

fn units(jobs: &[Job]) -> Vec<Vec<String>> {
    let text = |unit: &[u8]| String::from_utf8(unit.to_vec()).unwrap();
    jobs.iter().map(|job| job.units.iter().map(text).collect()).collect()
}

#[test]
fn blank_lines_are_skipped_and_counted_unless_they_count() {
    let (found, skipped) = jobs(b"a\n\nb\n\n", 100, 1, false, true);
    assert_eq!((units(&found), skipped), (vec![vec!["a".to_owned()], vec!["b".to_owned()]], 2));
    let (found, skipped) = jobs(b"a\n\nb", 100, 1, false, false);
    assert_eq!((found.len(), skipped, found[2].seq), (3, 0, 3));
}

#[test]
fn a_job_has_its_number_of_units_or_what_is_left() {
    let (found, _) = jobs(b"1\n2\n3\n4\n5\n", 100, 2, false, true);
    let lengths: Vec<usize> = found.iter().map(|job| job.units.iter().count()).collect();
    assert_eq!((lengths, found[2].name()), (vec![2, 2, 1], &b"5"[..]));
}

#[test]
fn units_have_their_numbers_in_the_input() {
    let input = [&b"a\n\nb\n"[..], &b"x".repeat(50), b"\n\nc\nd"].concat();
    for size in [10, 1000] {
        let (found, _) = jobs(&input, size, 2, false, true);
        let numbers = |job: &Job| job.names.iter().map(|(number, _)| number).collect::<Vec<_>>();
        assert_eq!(found.iter().map(numbers).collect::<Vec<_>>(), [vec![1, 3], vec![4, 6], vec![7]], "{size}");
        let lengths: Vec<u64> = found.iter().map(|job| job.length).collect();
        assert_eq!(lengths, [5, 54, 1], "every byte of the input belongs to a job");
    }
}

#[test]
fn only_a_unit_that_outgrows_the_buffer_is_too_long() {
    let input = [&b"x".repeat(50)[..], b"\nok\n"].concat();
    let (found, _) = jobs(&input, 10, 1, false, true);
    assert_eq!(found.iter().map(|job| job.too_long).collect::<Vec<_>>(), [true, false]);
    assert_eq!(found[1].units.first(), Some(&b"ok"[..]));
}

#[test]
fn standard_input_gets_the_units_as_they_came() {
    let long = b"x".repeat(50);
    let input = [&b"a\n"[..], &long, b"\nlast"].concat();
    for (max_args, expected) in [(1, vec![2, 51, 4]), (2, vec![53, 4])] {
        let (found, _) = jobs(&input, 10, max_args, true, true);
        let lengths: Vec<u64> = found.iter().map(|job| job.input.as_ref().unwrap().length()).collect();
        assert_eq!(lengths, expected);
    }
}

#[test]
fn numbers_need_no_input() {
    let mut batches = Batches::new(
        Numbers::to(Some(1000)),
        Buffer::new(Framing::EndedBy(b'\n'), 64),
        Shape { max_args: 1, to_stdin: false, skip_blank: true, keep: false },
        &template(),
        None,
        Look::default(),
    );
    let mut sum = 0;
    while !batches.is_over() {
        batches.fill(true, 0).unwrap();
        while let Some(job) = batches.next() {
            sum += std::str::from_utf8(job.units.first().unwrap()).unwrap().parse::<u64>().unwrap();
        }
    }
    assert_eq!(sum, 500_500);
}

#[test]
fn known_units_are_skipped_and_counted() {
    for to_stdin in [false, true] {
        let known: Known = Arc::new(|unit| (unit.starts_with(b"k") || unit.is_empty()).then_some(Before::Done));
        let shape = Shape { to_stdin, ..KEPT };
        let (found, done_before) = jobs_but(Some(known), b"k1\na\n\nk\nb\nc\nk", 100, shape);
        let numbers: Vec<Vec<u64>> = found.iter().map(|job| job.names.iter().map(|(n, _)| n).collect()).collect();
        assert_eq!((numbers, done_before), (vec![vec![2, 5], vec![6]], 3), "a blank unit is blank, not known");
        assert_eq!(at_hand(&found[0]), [b"a", b"b"]);
    }
}

#[test]
fn units_before_one_that_an_earlier_run_has_done_are_left_over() {
    let known: Known = Arc::new(|unit| match unit {
        b"done" => Some(Before::Done),
        b"a" => None,
        _ => (unit == b"again").then_some(Before::Taken),
    });
    let shape = Shape { max_args: 1, to_stdin: false, ..KEPT };
    let left_over = |input: &[u8]| -> Vec<bool> {
        let (jobs, _) = jobs_but(Some(Arc::clone(&known)), input, 2000, shape);
        jobs.iter().map(|job| job.is_left_over).collect()
    };
    let found = ["a\nb\ndone\nc\n", "done\na\nb\n", "a\nagain\nb\n"].map(|input| left_over(input.as_bytes()));
    assert_eq!(found, [vec![true, true, false], vec![false; 2], vec![false; 2]]);
}

#[test]
fn a_unit_in_pieces_is_not_known_and_not_kept() {
    let known: Known = Arc::new(|unit| (!unit.starts_with(b"b")).then_some(Before::Done));
    let input = [&b"b1\n"[..], &b"x".repeat(50), b"\nb2\nb3\n"].concat();
    let (found, done_before) = jobs_but(Some(known), &input, 10, KEPT);
    assert_eq!((done_before, at_hand(&found[0]), at_hand(&found[1])), (0, vec![&b"b1"[..]], vec![&b"b2"[..], b"b3"]));
    assert_eq!(found.iter().map(Job::is_whole).collect::<Vec<_>>(), [false, true]);
    assert_eq!(found[0].input.as_ref().unwrap().length(), 3 + 51, "standard input gets it all the same");
}

#[test]
fn kept_units_are_there_until_the_end_wherever_they_go() {
    let places = [(1, false), (1, true), (0, false), (0, true)];
    for (keep, (max_args, to_stdin)) in [false, true].into_iter().flat_map(|keep| places.map(|place| (keep, place))) {
        let (mut found, _) = jobs_but(None, b"a\0b\n", 10, Shape { max_args, to_stdin, skip_blank: true, keep });
        let is_argument = max_args == 1 && !to_stdin;
        assert_eq!(found[0].refused().is_some(), is_argument, "only an argument can hold no NUL");
        assert_eq!(found[0].shape.gives_arguments(), is_argument, "a unit that goes elsewhere is no argument");
        found[0].forget_units(false);
        assert_eq!(at_hand(&found[0]), [b"a\0b"][..usize::from(keep)], "{keep} {max_args} {to_stdin}");
    }
}

#[test]
fn a_job_stores_bounded_units_and_their_memory_counts() {
    let line = ["x".repeat(99_999).as_bytes(), b"\n"].concat();
    let shape = Shape { max_args: 50, ..KEPT };
    let (found, _) = jobs_but(None, &line.repeat(51), 200_000, shape);
    let kept = at_hand(&found[0]).len();
    assert!((20..42).contains(&kept) && !found[0].is_whole(), "{kept}");
    assert!(found[0].memory() >= kept * 99_999, "of it no more is cut ahead than fits");
    assert!(found[1].is_whole() && at_hand(&found[1]).len() == 1);
}
