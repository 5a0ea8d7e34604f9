"""Random limits and units for `judge.py`."""
import collections
from fractions import Fraction
from judge_model import LATE, MS, Limit, Unit, simulate


class Case:
    """`pieces`: how long after the start which units come. `lasts`: how long each command runs."""

    def __init__(self, limits, units, pieces, launch, where, processes, lasts, sets):
        self.limits, self.units, self.pieces, self.launch = limits, units, pieces, launch
        self.where, self.processes, self.lasts, self.sets = where, processes, lasts, sets
        self.kind = ("launch" if launch else "pipe", where, "one" if processes == 1 else "several")
        # The buckets' start matters.
        self.is_early = any(limit.initial < limit.burst for limit in limits)

    def show(self):
        lines = [" ".join(self.kind) + f", {self.processes} processes, lasts {self.lasts} ms, set {self.sets}",
                 " ".join(f"-r {limit.text}" for limit in self.limits)]
        for at, units in self.pieces:
            lines.append(f"{at / MS:.0f} ms: " + "; ".join(unit.text.decode("latin1") for unit in units))
        return "\n    ".join(lines)


def count_and_period(rng, rate):
    """Close to a rate per nanosecond, as integers."""
    period = rng.choice([rng.randint(20, 2000), 100, 1000])
    count = round(rate * period * MS)
    return (count, period) if count else (1, max(1, round(1 / (rate * MS))))


def any_limit(rng, units, lasts_ns, per, cost, names_burst, launch, is_new):
    weights = collections.Counter()
    for unit in units:
        weights[unit.key if per else None] += unit.cost if cost else 1
    weight, largest = max([1, *weights.values()]), max([1, *(unit.cost if cost else 1 for unit in units)])
    rate = weight / lasts_ns * rng.uniform(0.8, 2.5)
    burst = count = initial = span = 0
    if rng.random() < 0.3:
        count = max(largest, round(weight / rng.uniform(1.3, 4)))
        period = max(1, round(count / rate / MS))
        slack = rng.choice([None, 0, rng.randint(1, min(50, period))])
        text = f"{count}/{period}ms,window" + ("" if slack is None else f",slack={slack}ms")
        span = min(Fraction(period * MS, 20), 250 * MS) if slack is None else slack * MS
        span += period * MS
    else:
        count, period = count_and_period(rng, rate)
        text = f"{count}/{'s' if period == 1000 else f'{period}ms'}"
        count, rate = 0, Fraction(count, period * MS)
        burst = max(1, int(10 * MS * rate))
        if names_burst or rng.random() < 0.6:
            burst = rng.randint(max(1, largest // 2), 2 * largest) if cost else rng.randint(1, 3 if launch else 8)
            text += f",burst={burst}"
        initial = burst
        if is_new and rng.random() < 0.3:
            initial = rng.randint(0, burst)
            text += f",initial={initial}"
    text += ",per=f1" * per + ",cost=f2" * cost
    rate = 0 if count else rate
    return Limit(text, rate, burst, initial, count, span, period * MS, per, cost, 0)


def implied_windows(limits):
    """Of limits of one kind that name no burst, the one with the shortest period keeps its bucket; of equal periods, the
    slowest. The others are windows. `None` if the manual leaves it open."""
    kinds, result = collections.defaultdict(list), []
    for limit in limits:
        kinds[limit.per, limit.cost].append(limit)
    for of_kind in kinds.values():
        unnamed = [limit for limit in of_kind if limit.rate and "burst" not in limit.text]
        if unnamed and any(limit.count or "initial" in limit.text for limit in of_kind) and len(of_kind) > 1:
            return None
        paces = min(of_kind, key=lambda limit: (limit.period, limit.rate))
        if unnamed and [(limit.period, limit.rate) for limit in of_kind].count((paces.period, paces.rate)) > 1:
            return None
        for limit in of_kind:
            if limit is not paces and limit in unnamed:
                count = int(limit.rate * limit.period)
                slack = min(Fraction(limit.period, 20), 250 * MS)
                # With less slack, a looser limit is no slower than the one that paces.
                spare = int(count / paces.rate) - limit.period
                slack = min(slack, spare) if limit.rate >= paces.rate and spare >= 0 else slack
                limit = limit._replace(rate=0, burst=0, initial=0, count=count, span=limit.period + slack)
            result.append(limit)
    return result


def any_units(rng, keys, launch, processes):
    is_skewed, largest = rng.random() < 0.5, rng.choice([1, 3, 10, 100, 4000])
    weights = [1 / (place + 1) if is_skewed else 1 for place in range(keys)]
    units = []
    for age in range(rng.randint(5, 30 if launch else 60)):
        key, cost = rng.choices(range(keys), weights)[0], rng.choice([0, 1, largest, *[rng.randint(0, largest)] * 5])
        rest = b"" if launch else rng.choice([b"", b" \xff\x00\r", b" " + b"x" * rng.randint(1, 30)])
        units.append(Unit(age, f"k{key}", cost, rng.randrange(processes), f"k{key} {cost} {age}".encode() + rest))
    return units


def arrange(rng, limits, units, lasts_ns, lasts):
    """Pieces of the input, each at a time at which the model grants nothing."""
    count = rng.choice([1, 1, rng.randint(2, 6)])
    cuts = sorted(rng.sample(range(1, len(units)), min(count, len(units)) - 1))
    pieces, came, at = [], {}, 0
    for first, end in zip([0, *cuts], [*cuts, len(units)]):
        times = simulate(limits, units[:first], came, 0, lasts).values() if first else ()
        draws = [at + rng.randint(MS, max(2 * MS, round(1.5 * lasts_ns / count))) for _ in range(20)] if first else [0]
        at = next((draw for draw in draws if all(abs(draw - time) > LATE + MS for time in times)), draws[0])
        came.update((unit.age, at) for unit in units[first:end])
        pieces.append((at, units[first:end]))
    return pieces, came


def any_case(rng, stores, longest):
    launch, where = rng.random() < 0.5, rng.choice(stores)
    processes = rng.choice([1, 2, 3]) if where != "private" else 1
    while True:
        sets = where != "private" and (processes > 1 or rng.random() < 0.5)
        keyed, costly = rng.random() < 0.6, rng.random() < 0.5
        keys = rng.randint(1, 4 if launch else 8) if keyed else 1
        units, lasts_ns = any_units(rng, keys, launch, processes), rng.uniform(0.3, 1.6) * 1e9
        if not keyed:
            for unit in units:
                unit.key = "k0"
        kinds = [(keyed and (not place or rng.random() < 0.3), costly and rng.random() < 0.6)
                 for place in range(rng.randint(1, 3))]
        names = len(set(kinds)) < len(kinds) and rng.random() < 0.6
        limits = [any_limit(rng, units, lasts_ns, *kind, names, launch, not sets) for kind in kinds]
        lasts = 0
        if launch and (keyed or where != "private") and rng.random() < 0.35:
            jobs, lasts = rng.randint(1, 3), rng.randint(10, 60)
            limits[0] = limits[0]._replace(text=limits[0].text + f",jobs={jobs}", jobs=jobs)
        limits = implied_windows(limits)
        if limits is None or any(limit.count and unit.of(limit) > limit.count for limit in limits for unit in units):
            continue
        pieces, came = arrange(rng, limits, units, lasts_ns, lasts * MS)
        if 0.25e9 < max(simulate(limits, units, came, 0, lasts * MS).values()) < longest:
            return Case(limits, units, pieces, launch, where, processes, lasts, sets)
