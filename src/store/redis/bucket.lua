-- One step on a bucket: read its state, decide, store the next state. It computes as src/limits does, in whole
-- microseconds of the server's clock.
--
-- KEYS[1]  the bucket: one hash, so that it works in a cluster.
-- ARGV     what is asked; the bucket's id as the client knows it (0: not at all); the latest that its clock can be by the
--          client's own (0: not known); its limits as text and as numbers (empty: it knows none); then what the question
--          needs.
--
-- Lua's numbers are doubles. All numbers here are whole and below 2^52 (the client checks that), so the sum of two is
-- exact, and so is the floor of a quotient. As text they are printed in full, because '..' and tostring would round
-- them.

local MOST = 4503599627370496
local FORMAT = '1'
-- The most runs of a lease, with only buckets and with a window: more would block the server for over half a millisecond.
local RUNS, WINDOW_RUNS = 256, 64
-- No window logs more: its own are 1024 groups, and a lease adds its runs.
local MOST_ENTRIES = 4096
local THIRTY_DAYS = 2592000000000

local SECOND = 1000000
-- A wait of this length is an entry in the line. Who waits looks this often. Who was not seen for this long has gone.
local LONG, LOOK, GONE = SECOND, 5 * SECOND, 9 * SECOND
local MOST_WAITERS = 1024
-- The most limits of a bucket.
local MOST_KINDS = 16
-- So many entries whose time has come are forgotten together.
local PAST = 64
-- Added to the index of the limit that bound, if a grant is an entry.
local ENTRY = 32

local key, known, expected, text, numbers = KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local floor, max, min = math.floor, math.max, math.min

local function ceil_div(a, b)
    return floor((a + b - 1) / b)
end

local function split(words)
    local found = {}
    for word in string.gmatch(words, '%S+') do
        found[#found + 1] = tonumber(word) or 0 / 0
    end
    return found
end

-- A bucket: one unit costs `period` credits, one microsecond earns `units`, and `credit` is the credit at `at`.

local function grown(b, time)
    if time == b.at then
        return b.credit
    end
    local missing = b.full - b.credit
    if missing <= 0 or time - b.at >= ceil_div(missing, b.units) then
        return b.full
    end
    return b.credit + (time - b.at) * b.units
end

-- The credit at `now`, below 0 if it is owed. A debt is kept as a bucket that is not filled before a later time.
local function level(b, now)
    return now < b.at and b.credit - min(MOST, (b.at - now) * b.units) or grown(b, now)
end

local function set_level(b, now, credit)
    local wait = ceil_div(min(MOST, max(0, -credit)), b.units)
    b.credit, b.at = max(0, credit + wait * b.units), min(MOST - 1, now + wait)
end

local function bucket_conforms(b, now, cost)
    local start, price = max(now, b.at), cost * b.period
    if price > MOST then
        return nil
    end
    local missing = price - grown(b, start)
    return missing <= 0 and start or start + ceil_div(missing, b.units)
end

local function bucket_charge(b, now, grant, cost)
    local start, price = max(now, b.at), cost * b.period
    local gathered = min(MOST, grown(b, start) + max(0, grant - start) * b.units)
    local left = max(0, gathered - price)
    -- If `grant` is the earliest possible time, less than a microsecond's worth is left, and that fraction is kept.
    b.credit = left < b.units and left or max(0, min(gathered, b.full) - price)
    b.at = max(grant, start)
end

-- The whole part of part * to / from, for whole numbers with part below from. A product would not be exact, so it
-- divides bit by bit.
local function scaled(part, to, from)
    local whole, rest, bit = 0, 0, 1
    while bit * 2 <= to do
        bit = bit * 2
    end
    while bit >= 1 do
        whole, rest = whole * 2, rest * 2
        if to >= bit then
            to, rest = to - bit, rest + part
        end
        whole, rest = whole + floor(rest / from), rest % from
        bit = bit / 2
    end
    return whole
end

-- The credit of `old` at `time`, to the fraction of a unit.
local function bucket_inherit(b, old, time)
    local credit = level(old, time)
    local units, rest = floor(credit / old.period), credit % old.period
    set_level(b, time, units > floor(b.full / b.period) and b.full
        or min(b.full, units * b.period + scaled(rest, b.period, old.period)))
end

local function bucket_left(b, now)
    local credit = grown(b, max(now, b.at))
    local owed = min(MOST, max(0, b.at - now) * b.units)
    return owed > credit and -ceil_div(owed - credit, b.period) or floor((credit - owed) / b.period)
end

-- A window: the log of its grants, oldest first, from `head` to before `tail`, with `logged` units in all. The entries
-- before `skip` have left the period; `held` units have not.
--
-- Each field of the server's hash holds CHUNK entries: first the sum of their units, then the time and units of each,
-- all of the same WIDTH. So most entries are never looked at one by one, which would block the server.

local CHUNK, WIDTH = 32, 16

local function field(w, chunk)
    return 'w' .. w.place .. ':' .. string.format('%.0f', chunk)
end

local function number_in(text, position)
    return tonumber(string.sub(text, position * WIDTH + 1, (position + 1) * WIDTH)) or 0
end

-- The chunk of an entry as stored, and the place of the entry in it.
local function stored(w, index)
    local chunk = floor(index / CHUNK)
    local text = w.stored[chunk]
    if not text then
        text = redis.call('HGET', key, field(w, chunk)) or ''
        w.stored[chunk] = text
        local entries = min(w.stored_tail, (chunk + 1) * CHUNK) - chunk * CHUNK
        local is_needed = entries > 0 and (chunk + 1) * CHUNK > w.head
        if is_needed and (#text < (2 * entries + 1) * WIDTH or string.find(text, '%D')) then
            error({ 'damaged' })
        end
    end
    return text, index - chunk * CHUNK
end

local function entry(w, index)
    local found = w.log[index]
    if not found then
        local text, place = stored(w, index)
        found = { at = number_in(text, 2 * place + 1), units = number_in(text, 2 * place + 2) }
        w.log[index] = found
    end
    return found
end

-- Where the entries end, from `index` on, that `passes` accepts, which gets the time of the latest and all units. Whole
-- chunks are tried first.
local function pass(w, index, passes)
    while index < w.tail do
        local size = 1
        if index % CHUNK == 0 and index + CHUNK <= w.stored_tail then
            local text = stored(w, index)
            if not w.edited[index / CHUNK] and passes(number_in(text, 2 * CHUNK - 1), number_in(text, 0), true) then
                size = CHUNK
            end
        end
        if size == 1 then
            local found = entry(w, index)
            if not passes(found.at, found.units) then
                break
            end
        end
        index = index + size
    end
    return index
end

-- `edited` holds the first place that changed in each chunk.
local function put(w, index, at, units)
    local chunk = floor(index / CHUNK)
    w.log[index], w.edited[chunk] = { at = at, units = units }, min(index % CHUNK, w.edited[chunk] or CHUNK)
end

local function has_left(w, at, time)
    return time - at >= w.period
end

local function skip(w, time)
    w.skip = pass(w, w.skip, function(at, units)
        local passes = has_left(w, at, time)
        w.held = passes and w.held - units or w.held
        return passes
    end)
end

local function rewind(w)
    w.skip, w.held = w.head, w.logged
end

local function window_conforms(w, start, cost)
    if cost > w.count then
        return nil
    end
    skip(w, start)
    local held, time, room = w.held, start, w.count - cost
    pass(w, w.skip, function(at, units, is_chunk)
        if held - (is_chunk and units or 0) <= room then
            return false
        end
        held, time = held - units, max(time, at + w.period)
        return true
    end)
    return time
end

local function window_charge(w, grant, cost)
    local rest, last = cost, w.tail - 1
    -- An entry that has left the period must not count again because units join it.
    -- Those before `fixed` belong to the base of the line.
    local found = w.tail > max(w.head, w.fixed or 0) and entry(w, last)
    if found and not has_left(w, found.at, grant) then
        local shared = found.at == grant and rest or min(rest, max(0, w.group - found.units))
        if shared > 0 then
            put(w, last, grant, found.units + shared)
            rest = rest - shared
        end
    end
    if rest > 0 then
        put(w, w.tail, grant, rest)
        w.tail = w.tail + 1
    end
    w.logged, w.held = w.logged + cost, w.held + cost
end

-- The fields that the server has, and may not need any more; `save` removes those.
local on_server = {}

local function forget(w, first, beyond)
    for index = first, beyond - 1 do
        w.log[index] = nil
    end
end

local function prune(w, time)
    w.head = pass(w, w.head, function(at, units)
        local passes = has_left(w, at, time)
        w.logged = passes and w.logged - units or w.logged
        return passes
    end)
    if w.logged < 0 or (w.head == w.tail and w.logged > 0) then
        error({ 'damaged' })
    end
    rewind(w)
end

-- All limits together.

-- The limits as a client names them, from `time` on; `words[1]` is the quantum.
local function limits_of(words, time)
    local limits, next = {}, 2
    while words[next] do
        local place = #limits + 1
        if words[next] == 0 then
            limits[place] = { units = words[next + 1], period = words[next + 2], full = words[next + 3],
                credit = words[next + 4], at = time, credit0 = 0, at0 = time }
            next = next + 5
        else
            limits[place] = { place = place, period = words[next + 1], count = words[next + 2], group = words[next + 3],
                head = 0, tail = 0, logged = 0, tail0 = 0, logged0 = 0, last_at = 0, last_units = 0,
                log = {}, edited = {}, stored = {}, stored_tail = 0, skip = 0, held = 0 }
            next = next + 4
        end
    end
    return limits
end

local HEAD = { 'skew', 'asked', 'at', 'number', 'quantum', 'undo', 'undo_asked', 'undo_at' }
local BUCKET = { 'units', 'period', 'full', 'credit', 'at', 'credit0', 'at0' }
local WINDOW = { 'period', 'count', 'group', 'head', 'tail', 'logged', 'tail0', 'logged0', 'last_at', 'last_units' }

-- Nothing is granted before this time, if a hold was set since the last grant that can be undone.
local HELD = 2
-- The least number of a grant that can be given back: those before were in the line when that was emptied.
local FIRST = 3

-- Whatever else can write to the key may have written anything. Not a number is not equal to itself.
local function is_whole(number, least)
    return number and number == floor(number) and number >= least and number < 2 * MOST
end

local function take_over(into, names, words, next)
    for _, name in ipairs(names) do
        if not is_whole(words[next], name == 'skew' and -MOST or 0) then
            return nil
        end
        into[name] = words[next]
        next = next + 1
    end
    return next
end

local function is_sound(limit, undo)
    if not limit.place then
        return limit.units > 0 and limit.period > 0 and limit.full >= limit.period
            and max(limit.credit, limit.credit0) <= max(limit.full, limit.units)
    end
    local first, beyond = undo == 1 and limit.tail0 or limit.head, limit.tail
    return limit.period > 0 and limit.count > 0 and limit.group > 0 and limit.head <= first and first <= beyond
        and beyond - limit.head <= MOST_ENTRIES
end

local function load(words)
    local state = { limits = {}, held = 0, first = 0 }
    local next = take_over(state, HEAD, words, 1)
    while next and words[next] do
        if words[next] == FIRST then
            next = take_over(state, { 'first' }, words, next + 1)
        end
        if next and words[next] == HELD then
            next = take_over(state, { 'held' }, words, next + 1)
        end
        if not next or not words[next] then
            break
        end
        local place = #state.limits + 1
        local limit = words[next] == 0 and {} or { place = place, log = {}, edited = {}, stored = {} }
        next = (words[next] == 0 or words[next] == 1) and take_over(limit, limit.place and WINDOW or BUCKET, words, next + 1)
        if not next or not is_sound(limit, state.undo) then
            return nil
        end
        state.limits[place] = limit
        if limit.place then
            limit.stored_tail = limit.tail
            for chunk = floor(limit.head / CHUNK), floor((limit.tail - 1) / CHUNK) do
                on_server[field(limit, chunk)] = true
            end
            rewind(limit)
        end
    end
    return next and state.quantum > 0 and #state.limits > 0 and state or nil
end

-- Whether the limits are those that the client means by the same text.
local function are_named(limits, named)
    for place, limit in ipairs(named) do
        for _, name in ipairs(limit.place and { 'place', 'period', 'count' } or { 'place', 'units', 'period', 'full' }) do
            if not limits[place] or limits[place][name] ~= limit[name] then
                return false
            end
        end
    end
    return #limits == #named
end

local function words_of(from, names)
    local words = {}
    for place, name in ipairs(names) do
        words[place] = string.format('%.0f', from[name])
    end
    return table.concat(words, ' ')
end

local function state_words(state)
    local words = { words_of(state, HEAD) }
    for _, limit in ipairs(state.limits) do
        words[#words + 1] = (limit.place and '1 ' or '0 ') .. words_of(limit, limit.place and WINDOW or BUCKET)
    end
    if state.first > 0 then
        words[#words + 1] = FIRST .. ' ' .. string.format('%.0f', state.first)
    end
    if state.held > 0 then
        words[#words + 1] = HELD .. ' ' .. string.format('%.0f', state.held)
    end
    return table.concat(words, ' ')
end

-- The expiry in milliseconds from now: thirty days after the latest grant, or the time when every limit is at rest, if
-- that is later.
local function lifetime(state, now)
    local life, latest = THIRTY_DAYS, state.at
    for _, limit in ipairs(state.limits) do
        life = max(life, limit.place and limit.period or ceil_div(limit.full, limit.units))
        latest = max(latest, limit.place and 0 or limit.at)
    end
    return string.format('%.0f', ceil_div(latest - min(now, latest) + life, 1000))
end

-- A cost is a number, or a list of costs: one for each limit. A limit beyond that costs what the last of them says.

local function part(cost, index)
    return type(cost) == 'table' and (cost[index] or cost[#cost]) or cost
end

local function sum(a, b)
    if type(a) == 'number' and type(b) == 'number' then
        return a + b
    end
    local costs = {}
    for index = 1, max(type(a) == 'table' and #a or 1, type(b) == 'table' and #b or 1) do
        costs[index] = part(a, index) + part(b, index)
    end
    return costs
end

local function largest(cost)
    return type(cost) == 'table' and max(unpack(cost)) or cost
end

-- The line of those who wait; see src/limits/line.rs. Each field of the server's hash holds the words of CHUNK entries, 8
-- bytes each. So most entries are not looked at if one joins. `kinds` is the length of the longest list of costs in the
-- line; if there is one, the words of each entry end in so many costs.

local LINE = { 'swept', 'lost', 'length', 'checked' }
-- number, cost, asked, told, at, seen
local ENTRY_WORDS = 6

local function entry_words(line)
    return ENTRY_WORDS + line.kinds
end

local function packed(words, first, last)
    return struct.pack('<' .. string.rep('I8', last - first + 1), unpack(words, first, last))
end

local function unpacked(text, first, count)
    local words = { struct.unpack('<' .. string.rep('I8', count), text, first) }
    words[count + 1] = nil
    if max(unpack(words)) >= 2 * MOST then
        error({ 'damaged' })
    end
    return words
end

local function line_field(chunk)
    return 'l' .. string.format('%.0f', chunk)
end

local function last_chunk(line)
    return floor((line.length - 1) / CHUNK)
end

-- `lost`: some entered again since the state was lost, and nobody has moved up since.
local function load_line(words)
    local line = { texts = {}, edited = {} }
    local next = take_over(line, LINE, words, 1)
    -- In a line in which no costs differ there is no such word.
    line.kinds = words[5] or 0
    if not next or line.length > 2 * MOST_WAITERS or not is_whole(line.kinds, 0) or line.kinds > MOST_KINDS then
        return nil
    end
    for chunk = 0, last_chunk(line) do
        on_server[line_field(chunk)] = true
    end
    return line
end

local function line_chunk(line, chunk)
    local text, entries = line.texts[chunk], min(CHUNK, line.length - chunk * CHUNK)
    if not text then
        text = redis.call('HGET', key, line_field(chunk)) or ''
        line.texts[chunk] = text
        if #text ~= entries * entry_words(line) * 8 then
            error({ 'damaged' })
        end
    end
    return text, entries
end

-- An entry from its words.
local function entry_of(line, words, first)
    local cost = words[first + 1]
    -- A hold costs nothing.
    if line.kinds > 0 and cost > 0 then
        cost = { unpack(words, first + ENTRY_WORDS, first + ENTRY_WORDS + line.kinds - 1) }
    end
    return words[first], cost, unpack(words, first + 2, first + ENTRY_WORDS - 1)
end

local function entry_text(line, number, cost, ...)
    local words = { number, largest(cost), ... }
    for index = 1, line.kinds do
        words[ENTRY_WORDS + index] = part(cost, index)
    end
    return packed(words, 1, entry_words(line))
end

-- Calls `visit` with each entry, until it returns true.
local function each_waiter(line, visit)
    local width = entry_words(line)
    for chunk = 0, last_chunk(line) do
        local text, entries = line_chunk(line, chunk)
        local words = unpacked(text, 1, entries * width)
        for first = 1, #words, width do
            if visit(entry_of(line, words, first)) then
                return true
            end
        end
    end
end

local function waiter(line, place)
    local width = entry_words(line)
    local first = (place - 1) % CHUNK * width * 8 + 1
    return entry_of(line, unpacked(line_chunk(line, floor((place - 1) / CHUNK)), first, width), 1)
end

-- Makes room for a list of costs in all entries.
local function widen(line, cost)
    local kinds = type(cost) == 'table' and #cost or 0
    if kinds <= line.kinds then
        return
    end
    local chunks, count = {}, 0
    each_waiter(line, function(...)
        local wide, chunk = { kinds = kinds }, floor(count / CHUNK)
        chunks[chunk] = (chunks[chunk] or '') .. entry_text(wide, ...)
        count = count + 1
    end)
    line.kinds, line.texts = kinds, chunks
    for chunk = 0, last_chunk(line) do
        line.edited[chunk] = true
    end
end

-- Replaces an entry, or adds one at the end.
local function put_waiter(line, place, number, cost, ...)
    widen(line, cost)
    local size = entry_words(line) * 8
    local chunk, first = floor((place - 1) / CHUNK), (place - 1) % CHUNK * size
    local text = first == 0 and place > line.length and '' or line_chunk(line, chunk)
    line.texts[chunk] = string.sub(text, 1, first) .. entry_text(line, number, cost, ...)
        .. string.sub(text, first + size + 1)
    line.length, line.edited[chunk] = max(line.length, place), true
end

local function find(line, number)
    local word, size = packed({ number }, 1, 1), entry_words(line) * 8
    for chunk = 0, number > 0 and last_chunk(line) or -1 do
        local found = 0
        repeat
            found = string.find(line_chunk(line, chunk), word, found + 1, true)
        until not found or found % size == 1
        if found then
            return chunk * CHUNK + (found - 1) / size + 1
        end
    end
end

-- A chunk as it is to be stored. What was stored before the first change stays as it is.
local function chunk_text(w, chunk, edited)
    local text, sum = stored(w, chunk * CHUNK), 0
    for place = 0, edited - 1 do
        sum = sum + number_in(text, 2 * place + 2)
    end
    local before = string.sub(text, WIDTH + 1, (2 * edited + 1) * WIDTH)
    local words = { before, string.rep('0', 2 * edited * WIDTH - #before) }
    for index = chunk * CHUNK + edited, min(w.tail, (chunk + 1) * CHUNK) - 1 do
        local found = entry(w, index)
        words[#words + 1] = string.format('%016.0f%016.0f', found.at, found.units)
        sum = sum + found.units
    end
    return string.format('%016.0f', sum) .. table.concat(words)
end

-- Leaves in `on_server` what is not needed any more.
local function keep_needed(state)
    for chunk = 0, last_chunk(state.line) do
        on_server[line_field(chunk)] = nil
    end
    for _, limits in ipairs({ state.limits, state.base and state.base.limits or {} }) do
        for _, limit in ipairs(limits) do
            if limit.place then
                for chunk = floor(limit.head / CHUNK), floor((limit.tail - 1) / CHUNK) do
                    on_server[field(limit, chunk)] = nil
                end
            end
        end
    end
end

local function write(state, id, limits_text, call)
    keep_needed(state)
    call('HSET', key, 'v', FORMAT, 'id', string.format('%.0f', id), 'limits', limits_text, 'state', state_words(state))
    if state.base then
        local kinds = state.line.kinds > 0 and string.format(' %.0f', state.line.kinds) or ''
        call('HSET', key, 'line', words_of(state.line, LINE) .. kinds, 'base', state_words(state.base))
        on_server.line, on_server.base = nil, nil
    end
    for chunk, edited in pairs(state.line.edited) do
        if edited and chunk <= last_chunk(state.line) then
            call('HSET', key, line_field(chunk), state.line.texts[chunk])
        end
    end
    for place, limit in ipairs(state.limits) do
        local head = state.base and limit.place and min(limit.head, state.base.limits[place].head) or limit.head
        for chunk, edited in pairs(limit.edited or {}) do
            if (chunk + 1) * CHUNK > head and chunk * CHUNK < limit.tail then
                call('HSET', key, field(limit, chunk), chunk_text(limit, chunk, edited))
            end
        end
    end
    for name in pairs(on_server) do
        call('HDEL', key, name)
    end
end

-- A client that may not run all commands must change nothing. So a command that needs permission or memory is tried
-- first, while it does no harm. The server checks its memory only at the first command that writes, so that command
-- must need memory.
local function save(state, id, limits_text, now, call)
    call('HSET', key, 'v', FORMAT)
    call('PEXPIRE', key, lifetime(state, now))
    keep_needed(state)
    if next(on_server) then
        call('HDEL', key, '')
    end
    write(state, id, limits_text, call)
end

-- A new bucket that cannot expire is not made.
local function save_new(state, id, limits_text, now)
    write(state, id, limits_text, redis.call)
    local result = redis.pcall('PEXPIRE', key, lifetime(state, now))
    if type(result) == 'table' and result.err then
        redis.pcall('DEL', key)
        return result
    end
end

local function conforms(state, now, cost)
    local latest, place = max(now, state.at), 0
    if cost == 0 then
        return latest, 0
    end
    local start = latest
    for index, limit in ipairs(state.limits) do
        local time, units = start, part(cost, index)
        if units > 0 and limit.place then
            time = window_conforms(limit, start, units)
        elseif units > 0 then
            time = bucket_conforms(limit, now, units)
        end
        if not time or time >= MOST then
            return nil
        end
        if time > latest then
            latest, place = time, index
        end
    end
    return latest, place
end

local function charge(state, now, grant, cost)
    if cost == 0 then
        return
    end
    for index, limit in ipairs(state.limits) do
        if limit.place then
            window_charge(limit, grant, part(cost, index))
        else
            bucket_charge(limit, now, grant, part(cost, index))
        end
    end
    state.asked, state.at, state.number = max(state.asked, now), grant, state.number + 1
end

local function available(state, now)
    if now < state.at then
        return 0
    end
    local least = MOST
    for _, limit in ipairs(state.limits) do
        if limit.place then
            skip(limit, now)
            least = min(least, max(0, limit.count - limit.held))
        else
            least = min(least, max(0, floor(level(limit, now) / limit.period)))
        end
    end
    return least
end

-- A run of the waiting units, unless its time is `beyond` or later: all that conform now, if that is enough; otherwise
-- one quantum at its time.
local function take_run(state, now, waiting, beyond, promise)
    local units = max(min(waiting, state.quantum), min(waiting, available(state, now)))
    local grant, place = conforms(state, now, units)
    if not grant or grant >= beyond then
        return nil
    end
    return grant, units, place + promise(state, now, grant, units)
end

local function charge_run(state, now, grant, units)
    charge(state, now, grant, units)
    return 0
end

-- Undoing leaves this window as it is now.
local function mark(w)
    local last = w.tail > w.head and entry(w, w.tail - 1) or { at = 0, units = 0 }
    w.tail0, w.logged0, w.last_at, w.last_units = w.tail, w.logged, last.at, last.units
end

-- From here on, charges can be undone as a whole.
local function begin(state, now)
    state.undo, state.undo_asked, state.undo_at, state.held = 1, now, state.at, 0
    for _, limit in ipairs(state.limits) do
        if limit.place then
            prune(limit, state.at)
            mark(limit)
        else
            limit.credit0, limit.at0 = limit.credit, limit.at
        end
    end
end

local function undo(state)
    for _, limit in ipairs(state.limits) do
        if limit.place then
            forget(limit, limit.tail0, limit.tail)
            limit.tail, limit.logged = limit.tail0, limit.logged0
            if limit.last_units > 0 then
                put(limit, limit.tail - 1, limit.last_at, limit.last_units)
            end
            rewind(limit)
        else
            limit.credit, limit.at = limit.credit0, limit.at0
        end
    end
    state.at, state.undo, state.number = state.undo_at, 0, state.number + 1
end

-- Nothing is granted before `time`. The buckets are empty then, unless a grant is later. Windows keep their counts.
local function hold(state, time)
    state.at, state.held = max(state.at, time), max(state.held, time)
    for _, limit in ipairs(state.limits) do
        if not limit.place and limit.at <= time then
            limit.credit, limit.at = 0, time
        end
    end
end

-- A hold that was set after the undone grant stays.
local function hold_again(state)
    if state.held > 0 then
        hold(state, state.held)
    end
end

-- `base` is the state before the first of those who wait.

local function fix(state)
    state.base = load(split(state_words(state)))
    for place, limit in ipairs(state.limits) do
        limit.fixed = state.base.limits[place].tail
    end
end

local function loosen(state)
    for _, limit in ipairs(state.limits) do
        limit.fixed = nil
    end
    state.line, state.base, on_server.line, on_server.base = load_line({ 0, 0, 0, 0 }), nil, true, true
end

-- Charges a grant; ENTRY if it waits for long.
local function promise(state, now, grant, cost)
    local line = state.line
    if cost == 0 or line.length == 0 and grant - now < LONG then
        return charge_run(state, now, grant, cost)
    end
    if line.length == 0 then
        line.swept = now
        fix(state)
    end
    charge(state, now, grant, cost)
    state.undo = 0
    local number = line.length < MOST_WAITERS and state.number or 0
    local last, before = 0, 0
    if number == 0 then
        last, before = waiter(line, line.length)
    end
    if number == 0 and last == 0 then
        put_waiter(line, line.length, 0, sum(before, cost), now, grant, grant, now)
    else
        put_waiter(line, line.length + 1, number, cost, now, grant, grant, now)
    end
    return number > 0 and ENTRY or 0
end

local function charge_entry(state, asked, at, cost)
    if cost == 0 then
        hold(state, at)
    else
        for _, limit in ipairs(state.limits) do
            if limit.place then
                prune(limit, state.at)
            end
        end
        charge(state, max(asked, state.asked), max(at, state.at), cost)
    end
end

local function restore(state)
    for place, limit in ipairs(state.limits) do
        local before = state.base.limits[place]
        if limit.place then
            forget(limit, before.tail, limit.tail)
            limit.fixed, limit.stored_tail = nil, min(limit.stored_tail, before.tail)
        end
        for _, name in ipairs(limit.place and WINDOW or BUCKET) do
            limit[name] = before[name]
        end
        if limit.place then
            rewind(limit)
        end
    end
    state.asked, state.at, state.held = state.base.asked, state.base.at, state.base.held
    state.number, state.undo = state.number + 1, 0
end

-- Charges all again, each at the least time that its owner learns of before, and not later than it was told: without
-- those that `goes` accepts. With a newcomer before those with a time after `latest`. If that is back since the state was lost,
-- none moves up, because others may come back, too; and that one and all who will look before their time may have to wait
-- longer. A newcomer without a number is a hold: nobody moves into that. `change` comes before those that still wait.
-- Returns whether all conform.
local function retime(state, now, goes, newcomer, latest, change)
    local line, last, soon, all_conform = state.line, state.asked, now + LOOK, true
    local words, count, held, back = {}, 0, 0, newcomer and newcomer[1] or 0
    local function keep(number, cost, asked, told, at, seen)
        if told <= now then
            charge_entry(state, asked, at, cost)
        else
            words[count + 1], words[count + 2], words[count + 3] = number, cost, asked
            words[count + 4], words[count + 5], words[count + 6] = told, at, seen
            held = cost == 0 and count or held
            count = count + ENTRY_WORDS
        end
    end
    local function visit(number, cost, asked, told, at, seen)
        if goes and told > now and goes(number, cost, asked, told, at, seen) then
            return
        end
        if newcomer and at > latest then
            keep(unpack(newcomer))
            newcomer = nil
        end
        keep(number, cost, asked, told, at, seen)
    end
    widen(line, newcomer and newcomer[2])
    restore(state)
    each_waiter(line, visit)
    if newcomer then
        keep(unpack(newcomer))
    end
    if change then
        change(state, now)
    end
    line.length, line.lost = count / ENTRY_WORDS, min(back, 1)
    if count > 0 then
        fix(state)
    else
        state.base, on_server.line, on_server.base = nil, true, true
    end
    for first = 1, count, ENTRY_WORDS do
        local number, cost, asked, told, at = unpack(words, first, first + 4)
        local grant = number > 0 and conforms(state, max(asked, state.asked), cost)
        if grant and back == 0 then
            at = first <= held and at or min(max(grant, min(at, soon)), told)
        elseif grant and (number == back or at > soon) then
            at = max(grant, at)
        elseif number > 0 then
            all_conform = all_conform and grant and grant <= at
        end
        charge_entry(state, asked, at, cost)
        words[first + 3], words[first + 4] = max(told, at), at
    end
    for chunk = 0, last_chunk(line) do
        local first, text, entries = chunk * CHUNK * ENTRY_WORDS + 1, nil, {}
        local beyond = min(count, first + CHUNK * ENTRY_WORDS - 1)
        if line.kinds == 0 then
            text = packed(words, first, beyond)
        else
            for place = first, beyond, ENTRY_WORDS do
                entries[#entries + 1] = entry_text(line, unpack(words, place, place + ENTRY_WORDS - 1))
            end
            text = table.concat(entries)
        end
        line.edited[chunk] = line.edited[chunk] or text ~= line.texts[chunk]
        line.texts[chunk] = text
    end
    state.asked, state.undo = max(last, state.asked), 0
    return all_conform
end

-- Removes one whose time has not come.
local function remove(state, now, number)
    local place = find(state.line, number)
    if place and select(4, waiter(state.line, place)) > now then
        retime(state, now, function(found)
            return found == number
        end)
        return true
    end
end

-- Forgets those whose time has come, and every so often those that were not seen. Returns whether anything has changed.
local function sweep(state, now)
    local line = state.line
    local function waits(_, _, _, told)
        return told > now
    end
    local function is_gone(number, _, _, told, _, seen)
        return number > 0 and told > now and now - seen >= GONE
    end
    if line.length > 0 and now >= state.at and not each_waiter(line, waits) then
        loosen(state)
        return true
    end
    if line.length == 0 then
        return false
    end
    local are_past = line.length >= PAST and not waits(waiter(line, PAST))
    local is_due = now >= line.swept + LOOK or are_past and line.length >= MOST_WAITERS
    -- Who waits looks every 5 s. So one that has gone is noticed within GONE, a second and these 5 s.
    local is_time = now >= line.checked + SECOND
    line.swept, line.checked = is_due and now or line.swept, is_time and now or line.checked
    -- Without a reason, nobody would move.
    if is_due and (are_past or line.lost == 1) or is_time and each_waiter(line, is_gone) then
        retime(state, now, is_gone)
    end
    return is_due or is_time
end

-- The index of the first entry of that time or later.
local function since(w, time)
    local index, beyond = w.head - 1, w.tail
    while beyond - index > 1 do
        local middle = floor((index + beyond) / 2)
        if entry(w, middle).at < time then
            index = middle
        else
            beyond = middle
        end
    end
    return beyond
end

-- Removes units from the entries from `index` on.
local function take_out(w, index, units)
    while units > 0 and index < w.tail do
        local found = entry(w, index)
        local returned = min(units, found.units)
        put(w, index, found.at, found.units - returned)
        w.logged, units, index = w.logged - returned, units - returned, index + 1
    end
    -- Units never join an empty entry.
    while w.tail > w.head and entry(w, w.tail - 1).units == 0 do
        forget(w, w.tail - 1, w.tail)
        w.tail = w.tail - 1
    end
    rewind(w)
end

-- Credits units that were granted at `grant` and not used, less what was gained since.
local function credit(limit, now, grant, units)
    if limit.place then
        local index = since(limit, grant + 1) - 1
        if index >= limit.head and entry(limit, index).at == grant then
            take_out(limit, index, min(units, entry(limit, index).units))
        end
    else
        local gained = min(MOST, (now - grant) * limit.units)
        local refund = max(0, min(units, floor(limit.full / limit.period)) * limit.period - gained)
        local found = level(limit, now)
        set_level(limit, now, max(found, min(limit.full, found + refund)))
    end
end

-- Corrects a grant of that time: it was charged the first cost, and cost the second. Does nothing if it no longer counts.
local function correct(w, now, grant, charged, real)
    if has_left(w, grant, now) then
        return
    end
    local index = since(w, grant)
    if real <= charged then
        return take_out(w, index, charged - real)
    end
    -- More would make no difference. If the log has no such entry, they join the latest, so that it stays short.
    local more = min(real - charged, w.count, MOST - 1 - w.logged)
    index = min(index, w.tail - 1)
    local found = index >= w.head and entry(w, index)
    if found and not has_left(w, found.at, now) then
        put(w, index, max(found.at, grant), found.units + more)
        w.logged = w.logged + more
        rewind(w)
    else
        window_charge(w, grant, more)
    end
end

-- A limit at the same index and of the same kind keeps its credit or count.
local function inherit(limit, old, time)
    if limit.place then
        limit.head, limit.tail, limit.logged = old.head, old.tail, old.logged
        limit.log, limit.edited, limit.stored, limit.stored_tail = old.log, old.edited, old.stored, old.stored_tail
        rewind(limit)
    else
        bucket_inherit(limit, old, time)
    end
end

local ask, id = {}

function ask.look(state, now)
    local reply = {}
    for index, limit in ipairs(state.limits) do
        if limit.place then
            skip(limit, max(now, state.at))
            reply[index] = now < state.at and 0 or max(0, limit.count - limit.held)
        else
            reply[index] = bucket_left(limit, now)
        end
    end
    local grant = conforms(state, now, 1)
    reply[#reply + 1] = available(state, now)
    reply[#reply + 1] = grant and grant - now or -1
    each_waiter(state.line, function(_, cost, _, told, at)
        if told > now and cost ~= 0 then
            reply[#reply + 1], reply[#reply + 2] = largest(cost), max(0, at - now)
        end
    end)
    return reply, false
end

-- The cost that ARGV names: how many there are, and the costs. A list only if they differ.
local function cost_at(place)
    local costs, differ = {}, false
    for index = 1, tonumber(ARGV[place]) do
        costs[index] = tonumber(ARGV[place + index])
        differ = differ or costs[index] ~= costs[1]
    end
    return differ and costs or costs[1]
end

-- ARGV: the number of an entry; how long it still has to wait; its cost. One that is not known enters again.
function ask.stay(state, now)
    local number, left, units = tonumber(ARGV[6]), tonumber(ARGV[7]), cost_at(8)
    local line = state.line
    local place = find(line, known == id and number or 0)
    if not place and line.length >= MOST_WAITERS then
        return { now + left, 0 }, false
    elseif not place then
        if line.length == 0 then
            line.swept = now
            begin(state, now)
            fix(state)
        end
        state.number = state.number + 1
        number = state.number
        local told = now + max(left, 1)
        local function is_it(found)
            return found == number
        end
        -- If that leaves no room for those who will not look again, it enters behind them.
        if not retime(state, now, nil, { number, units, now, told, told, now }, told) then
            retime(state, now, is_it, { number, units, now, told, told, now }, max(told, now + LOOK))
        end
        place = find(line, number)
    end
    if not place then
        return { now + left, number }, true
    end
    local _, cost, asked, _, at = waiter(line, place)
    put_waiter(line, place, number, cost, asked, at, at, now)
    return { at, number }, true
end

-- ARGV: the longest wait, or -1 for any wait; the cost.
function ask.take(state, now)
    local longest, units = tonumber(ARGV[6]), cost_at(7)
    local grant, place = conforms(state, now, units)
    if not grant then
        return nil, { 'never' }
    end
    if longest >= 0 and grant - now > longest then
        return nil, { 'late', grant - now }
    end
    -- A cost of 0 leaves the grant before it as it is, so that one can still be undone.
    if units ~= 0 then
        begin(state, now)
        place = place + promise(state, now, grant, units)
    end
    return { grant, largest(units), place }, true
end

-- ARGV: units that wait; the time to cover from the first run on; the time before which nothing is granted.
function ask.lease(state, now)
    local left, span, from = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
    if from > now and state.line.length == 0 then
        hold(state, from)
    end
    begin(state, now)
    local reply, beyond, most = {}, MOST, RUNS
    for _, limit in ipairs(state.limits) do
        most = limit.place and WINDOW_RUNS or most
    end
    repeat
        local grant, units, place = take_run(state, now, left, beyond, promise)
        if not grant then
            break
        end
        -- One that waits for long comes alone.
        beyond = state.line.length > 0 and 0 or min(beyond, grant + span, now + LONG)
        reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = grant, units, place
        left = left - units
    until left <= 0 or #reply >= 3 * most
    if #reply == 0 then
        return nil, { 'never' }
    end
    return reply, true
end

-- While a grant is in the future, or others wait, nothing is credited.
local function credit_all(state, now, grant, units)
    if now < state.at or now < grant or state.base then
        return
    end
    for index, limit in ipairs(state.limits) do
        credit(limit, now, grant, part(units, index))
    end
    state.asked, state.at, state.undo, state.held = max(state.asked, now), now, 0, 0
end

-- ARGV: the number of the grant; its time; its cost.
function ask.give(state, now)
    local number, grant, units = tonumber(ARGV[6]), tonumber(ARGV[7]), cost_at(8)
    if units == 0 or number < state.first then
        return {}, false
    end
    if remove(state, now, number) then
        return {}, true
    end
    if number == state.number and now < grant and state.undo == 1 then
        undo(state)
        hold_again(state)
    else
        credit_all(state, now, grant, units)
    end
    return {}, true
end

-- ARGV: the time of a grant; what it was charged; what it really cost. As settle_forgotten in src/limits/settling.rs.
function ask.settle(state, now)
    local grant, charged, real = tonumber(ARGV[6]), cost_at(7), cost_at(8 + tonumber(ARGV[7]))
    local function settle_bucket(b, latest, from, to)
        local most = floor(b.full / b.period)
        if to > from then
            set_level(b, now, max(-MOST, level(b, now) - min(MOST, (to - from) * b.period)))
        elseif now >= max(latest, grant) then
            credit(b, now, grant, min(from, most) - min(to, most))
        end
    end
    local function settle()
        for index, limit in ipairs(state.limits) do
            local from, to = part(charged, index), part(real, index)
            if limit.place then
                correct(limit, max(now, state.at), grant, from, to)
                mark(limit)
            else
                settle_bucket(limit, state.at, from, to)
                local before = { units = limit.units, period = limit.period, full = limit.full,
                    credit = limit.credit0, at = limit.at0 }
                settle_bucket(before, state.undo_at, from, to)
                limit.credit0, limit.at0 = before.credit, before.at
            end
        end
    end
    if state.base then
        retime(state, now, nil, nil, nil, settle)
    else
        settle()
    end
    state.asked = max(state.asked, now)
    return {}, true
end

-- ARGV: the number of the last lease's last grant; units of it that were used; how many of the following runs are of leases
-- before it; time and units of each run that was not used.
function ask.unlease(state, now)
    local number, spent, older = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
    local last = #ARGV - 1
    if number < state.first then
        return {}, false
    end
    if number == state.number and state.undo == 1 then
        undo(state)
        while spent > 0 do
            local grant, units = take_run(state, state.undo_asked, spent, MOST, charge_run)
            if not grant then
                break
            end
            spent = spent - units
        end
        hold_again(state)
        last = min(last, 8 + 2 * older)
    end
    for place = 9, last, 2 do
        credit_all(state, now, tonumber(ARGV[place]), tonumber(ARGV[place + 1]))
    end
    return {}, true
end

-- ARGV: the time until which nothing is granted.
function ask.hold(state, now)
    local time = tonumber(ARGV[6])
    local function is_hold(_, cost, _, told)
        time = cost == 0 and max(time, told) or time
        return cost == 0
    end
    if time > now and state.line.length == 0 then
        hold(state, time)
    elseif time > now then
        each_waiter(state.line, function(...)
            is_hold(...)
        end)
        retime(state, now, is_hold, { 0, 0, now, time, time, now }, time)
    end
    return {}, true
end

local function set(state, now)
    local words, old = split(numbers), state.limits
    state.limits, state.quantum = limits_of(words, now), words[1]
    for place, before in ipairs(old) do
        local limit = state.limits[place]
        if limit and ARGV[5 + place] ~= '1' and (limit.place ~= nil) == (before.place ~= nil) then
            -- A debt may end after the latest grant.
            inherit(limit, before, max(now, min(before.at or now, state.at)))
        end
    end
    -- No grant has this number: an earlier grant cannot be undone in limits that it was not charged to.
    state.asked, state.number, state.undo, state.held = max(state.asked, now), state.number + 1, 0, 0
end

-- ARGV: for each limit, 1 if it starts anew.
function ask.set(state, now)
    if state.base then
        retime(state, now, nil, nil, nil, set)
    else
        set(state, now)
    end
    return {}, true
end

-- ARGV: 1 if everything begins anew, with the client's limits.
function ask.clear(state, now)
    if state.base or ARGV[6] == '1' then
        state.first = state.number + 1
    end
    if state.base then
        retime(state, now, function(_, cost)
            return cost ~= 0
        end)
    end
    if ARGV[6] == '1' then
        if state.base then
            loosen(state)
        end
        for _, limit in ipairs(state.limits) do
            if limit.place then
                forget(limit, limit.head, limit.tail)
            end
        end
        state.limits, state.at, state.number = {}, now, state.number + 1
        set(state, now)
    end
    return {}, true
end

local clock = redis.call('TIME')
local server = clock[1] * 1000000 + clock[2]

local kept = redis.pcall('HMGET', key, 'v', 'id', 'limits', 'state', 'line', 'base')
if kept.err and not string.find(kept.err, 'WRONGTYPE', 1, true) then
    return kept
elseif kept.err or (not kept[1] and redis.call('EXISTS', key) == 1) then
    return { 'foreign' }
elseif kept[1] and kept[1] ~= FORMAT then
    return { 'newer', kept[1] }
elseif not kept[1] and text == '' then
    return { 'unknown' }
elseif ARGV[1] == 'remove' then
    -- Also one that is damaged.
    redis.call('DEL', key)
    return { 'ok', '', 0, server, 0 }
end

local state, limits_text, now, went_on
if kept[1] then
    state, id, limits_text = load(split(kept[4] or '')), tonumber(kept[2]), kept[3]
    if not state or not is_whole(id, 0) or not limits_text
        or (text == limits_text and not are_named(state.limits, limits_of(split(numbers), 0))) then
        return { 'damaged' }
    end
    now = server + state.skew
    -- The server's clock went back; the bucket's does not.
    if now < state.asked then
        state.skew, now, went_on = state.asked - server, state.asked, true
    elseif expected > 0 and known == id and now > expected + LOOK then
        -- It went forward in one step.
        now = max(expected, state.asked)
        state.skew, went_on = now - server, true
    end
    state.line = load_line(split(kept[5] or '0 0 0 0'))
    state.base = kept[6] and load(split(kept[6]))
    if not state.line or (state.line.length > 0) ~= (state.base ~= nil and state.base ~= false) then
        return { 'damaged' }
    end
    for place, limit in ipairs(state.limits) do
        limit.fixed = state.base and state.base.limits[place].tail
    end
else
    local words = split(numbers)
    state = { skew = 0, asked = server, at = server, number = 0, quantum = words[1], undo = 0, undo_asked = 0,
        undo_at = 0, held = 0, first = 0, limits = limits_of(words, server), line = load_line({ 0, 0, 0, 0 }) }
    id, limits_text, now = server, text, server
end

-- The server has lost the bucket that this client knew. If no other client has made it since, it starts empty.
if known ~= 0 and not kept[1] then
    for _, limit in ipairs(state.limits) do
        limit.credit = limit.credit and 0
    end
end

-- Nothing is given back to a bucket that was not charged.
if known ~= 0 and known ~= id and (ARGV[1] == 'give' or ARGV[1] == 'unlease' or ARGV[1] == 'settle') then
    return { 'ok', '', id, now, state.number }
end

-- A client that has not seen the bucket takes from it only by the limits that it named, if it named any.
if kept[1] and known == 0 and ARGV[1] == 'take' and text ~= '' and text ~= limits_text then
    return { 'ok', limits_text, id, now, state.number }
end

local ran, reply, changed = pcall(function()
    -- To view a bucket changes nothing.
    went_on = kept[1] and ARGV[1] ~= 'look' and sweep(state, now) or went_on
    return ask[ARGV[1]](state, now)
end)
if not ran then
    return type(reply) == 'table' and reply or error(reply)
end
if reply and (ARGV[1] == 'set' or ARGV[1] == 'clear' and ARGV[6] == '1') then
    limits_text = text
end
if reply and not kept[1] then
    local refused = save_new(state, id, limits_text, now)
    if refused then
        return refused
    end
elseif reply and changed then
    save(state, id, limits_text, now, redis.call)
elseif went_on then
    -- The bucket's clock continues from there even if nothing is taken. If the server allows only reading, as a replica
    -- does, this is not stored, but viewing still works.
    save(state, id, limits_text, now, redis.pcall)
end
if not reply then
    return changed
end
local answer = { 'ok', limits_text == text and '' or limits_text, id, now, state.number }
for index = 1, #reply do
    answer[5 + index] = reply[index]
end
return answer
