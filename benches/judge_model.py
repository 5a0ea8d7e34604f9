"""When each unit is granted, by the rules of the manual, in exact fractions. Times are in nanoseconds.

- A bucket of `burst` fills at the rate; a unit conforms once its cost is there. One that costs more than the burst conforms
  once the bucket has been full, and the rate has paid the rest since the unit came; it leaves the bucket empty.
- A window: a unit of cost c conforms once at most COUNT - c was used in the last PERIOD + slack. A unit counts from the time
  at which it was handed over; in a shared bucket, from the time at which it was granted.
- A grant is the least time at which all limits conform: not before the unit came, nor before the grant before it. All limits
  are charged at that time, so a late wake-up loses no rate.
- Units of one key keep their order. Between keys: start-time fair queueing (Goyal et al., 1996). A start tag is the virtual
  time or the finish tag of the key's last unit, whichever is greater. The finish tag is later by the longest time that a
  limit of all needs for the unit's cost. Of the units that conform to the limits of their key the one with the least start
  tag goes next; of equal ones, the one that came first. The virtual time is the start tag of the unit that went last. For a
  unit that conforms to the limits of its key when all limits of all are at rest, it is the greatest finish tag. A unit of a
  pipe that leaves when it comes, while no other one is ready, may take no turn.
- jobs=N: at most N commands of a key run at once.

The order between keys is open if it depends on less than 5 ms: whether a unit had come, or conformed to the limits of its
key, when another one left; or on roundings of start tags that are equal. `follow` accepts both, and goes on from both.
"""
import collections
from fractions import Fraction

MS = 1_000_000
LATE, ROUNDING, WORLDS = 5 * MS, 1000, 64


# A bucket has a rate and a burst, a window a count. `span`: how long it counts a unit.
Limit = collections.namedtuple("Limit", "text rate burst initial count span period per cost jobs")


class Bucket:
    """`full` is when it will be full, or was."""

    def __init__(self, limit, origin):
        self.rate, self.burst = limit.rate, limit.burst
        self.full = origin + (self.burst - limit.initial) / self.rate

    def conforms(self, asked, cost):
        full = max(self.full, asked) if cost > self.burst else self.full
        return max(asked, full + (cost - self.burst) / self.rate) if cost else asked

    def rests(self):
        return self.full

    def charge(self, granted, _counted, cost):
        if cost:
            self.full = max(self.full + cost / self.rate, granted + min(cost, self.burst) / self.rate)


class Window:
    def __init__(self, limit, _origin):
        self.count, self.span, self.entries = limit.count, limit.span, []

    def conforms(self, asked, cost):
        if cost == 0:
            return asked
        used = cost
        for counted, taken in sorted(self.entries, reverse=True):
            used += taken
            if used > self.count:
                return max(asked, counted + self.span)
        return asked

    def rests(self):
        return max((counted for counted, _ in self.entries), default=-self.span) + self.span

    def charge(self, _granted, counted, cost):
        if cost:
            self.entries.append((counted, cost))


class Unit:
    def __init__(self, age, key, cost, process, text):
        self.age, self.key, self.cost, self.process, self.text = age, key, cost, process, text

    def of(self, limit):
        return self.cost if limit.cost else 1


class Model:
    """Of the units that have not left: `came` says when each came. `asks`: the limits of all are asked one after another."""

    def __init__(self, limits, units, came, origin, asks=False):
        made = lambda per: [(limit, (Window if limit.count else Bucket)(limit, origin))
                            for limit in limits if limit.per == per and (limit.count or limit.rate)]
        self.jobs = next((limit.jobs for limit in limits if limit.jobs), None)
        self.all, self.came, self.last, self.asks = made(False), came, origin, asks
        self.each = {unit.key: made(True) for unit in units}
        self.ends = {unit.key: [] for unit in units}
        self.waiting = {key: collections.deque() for key in self.each}
        for unit in sorted(units, key=lambda unit: (came[unit.age], unit.age)):
            self.waiting[unit.key].append(unit)

    def own(self, unit):
        """When it conforms to the limits of its key."""
        asked = self.came[unit.age]
        times = [state.conforms(asked, unit.of(limit)) for limit, state in self.each[unit.key]]
        if self.jobs and len(self.ends[unit.key]) >= self.jobs:
            times.append(sorted(self.ends[unit.key])[-self.jobs])
        return max([asked, *times])

    def conforms(self, unit):
        asked = max(self.own(unit), self.last) if self.asks else self.came[unit.age]
        times = [state.conforms(asked, unit.of(limit)) for limit, state in self.all]
        return max([asked, self.last, *times])

    def length(self, unit):
        return max([1, *(unit.of(limit) * limit.period / limit.count if limit.count else unit.of(limit) / limit.rate
                         for limit, _ in self.all)])

    def is_at_rest(self, time):
        """Whether the limits of all are as if nothing had left. Without limits, they are once time has gone by."""
        return all(state.rests() <= time for _, state in self.all) if self.all else time > self.last

    def start(self, unit, fair, shift=0):
        """The start tag of the first unit of a key. `shift`: by how much it may have been ready later."""
        return fair.tag(unit.key, self.is_at_rest(max(self.own(unit), self.last) + shift))

    def heads(self):
        """The first unit of each key, and the time at which it conforms to the limits of its key."""
        return [(self.own(line[0]), line[0]) for line in self.waiting.values() if line]

    def choose(self, heads, fair, favoured=None, shift=0):
        """The unit that goes next. Of tags that are nearly equal, that of `favoured` is the least."""
        heads.sort(key=lambda head: head[0])
        for place, (own, _) in enumerate(heads):
            tag = lambda unit: (self.start(unit, fair, shift) - (ROUNDING if unit is favoured else 0), unit.age)
            unit = min((unit for _, unit in heads[:place + 1]), key=tag)
            if place + 1 == len(heads) or max(own, self.conforms(unit)) < heads[place + 1][0]:
                return unit

    def grant(self, unit, seen=None, end=None):
        """The time at which it is granted. `seen`: a window counts it from then."""
        self.last = granted = max(self.own(unit), self.conforms(unit))
        for limit, state in self.all + self.each[unit.key]:
            state.charge(granted, granted if seen is None else seen, unit.of(limit))
        if self.jobs:
            self.ends[unit.key].append(end)
        self.waiting[unit.key].remove(unit)
        return granted


class Fair:
    """Tags of start-time fair queueing."""

    def __init__(self, virtual=0, greatest=0, finish=()):
        self.virtual, self.greatest, self.finish = virtual, greatest, dict(finish)

    def tag(self, key, is_at_rest):
        return max(self.greatest if is_at_rest else self.virtual, self.finish.get(key, 0))

    def went(self, key, start, length):
        return Fair(start, max(self.greatest, start + length), {**self.finish, key: start + length}).shifted()

    def passed(self, is_at_rest):
        return Fair(self.greatest if is_at_rest else self.virtual, self.greatest, self.finish).shifted()

    def shifted(self):
        """Only differences count."""
        finish = {key: tag - self.virtual for key, tag in self.finish.items() if tag > self.virtual}
        return Fair(0, max(0, self.greatest - self.virtual), finish)

    def same(self):
        return self.greatest, tuple(sorted(self.finish.items()))


def simulate(limits, units, came, origin, lasts=0):
    """The times of the grants, by age, if every unit leaves when it is granted and each command lasts so long."""
    model, fair, times = Model(limits, units, came, origin), Fair(), {}
    while heads := model.heads():
        unit = model.choose(heads, fair)
        granted = max(model.own(unit), model.conforms(unit))
        fair = fair.went(unit.key, model.start(unit, fair), model.length(unit))
        times[unit.age] = model.grant(unit, end=granted + lasts)
    return times


def follow(model, worlds, unit, seen, end):
    """Grants a unit that went: whether it was its turn, when it was granted, and the states of the queue that there may be."""
    heads = model.heads()
    is_first = model.waiting[unit.key][0] is unit
    favoured = [(own - LATE if head is unit else own + LATE, head) for own, head in heads]
    shifts = [0, LATE, -LATE]
    is_right = lambda fair, shift: any(model.choose(these, fair, unit, shift) is unit for these in (heads, favoured))
    right = [(fair, shift) for fair in worlds for shift in shifts if is_right(fair, shift)] if is_first else []
    length, at = model.length(unit), max(model.own(unit), model.conforms(unit))
    others = [own for own, head in heads if head is not unit]
    may_pass = at < model.came[unit.age] + LATE and all(own > at - LATE for own in others)
    after = []
    for fair, shift in right or [(fair, 0) for fair in worlds]:
        after.append(fair.went(unit.key, model.start(unit, fair, shift), length))
        if may_pass:
            after.append(fair.passed(model.is_at_rest(max(at, model.last) + shift)))
    granted = model.grant(unit, seen, end)
    worlds = list({fair.same(): fair for fair in after}.values())
    return bool(right), granted, worlds[:WORLDS]
