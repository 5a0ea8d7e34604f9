-- The log of a bucket. It stamps an operation with the bucket's time, appends it, and returns what the client has not
-- seen. It knows nothing of limits: every client folds the same log.
--
-- KEYS[1]  the bucket: one hash, so that it works in a cluster. `v` is the format, `skew` the bucket's time less the
--          server's, `last` the latest time that anybody was told, `life` for how long the bucket is kept. `log` is the
--          operations, each with its stamp behind it, in 16 digits. It begins at the place `first`, counted in bytes since
--          the bucket was made. `s` is a snapshot of all before, and `folded` the stamp of the last of them. Times are in
--          microseconds. Each call of a command takes about as long as all else here, so there are four.
-- ARGV     what is asked: `whole`, `log` if the client reads the snapshot by itself, or `remove`; the id of the bucket that
--          the client knows, the place up to which it has read the log, and the stamp before that place; an operation, or
--          nothing; the operation that makes the bucket, or nothing; the latest that its clock can be by the client's own,
--          or 0; a snapshot of all that the client has read, or nothing; for how many milliseconds the bucket is kept.

local FORMAT, LOOK, key = '3', 1000000, KEYS[1]
local asked, known, seen, stamp, operation, make, expected, snapshot, lives = unpack(ARGV)
local clock = redis.call('TIME')
local server = clock[1] * 1000000 + clock[2]
local kept = redis.pcall('HMGET', key, 'v', 'id', 'skew', 'last', 'first', 'folded', 'life', 'log')
if kept.err and not string.find(kept.err, 'WRONGTYPE', 1, true) then
    return kept
elseif kept.err or not kept[1] and redis.call('EXISTS', key) == 1 then
    return { 'foreign' }
elseif kept[1] and kept[1] ~= FORMAT then
    return { 'format', kept[1] }
elseif not kept[1] and (make == '' or asked == 'remove') then
    return { 'unknown' }
elseif asked == 'remove' then
    redis.call('DEL', key)
    return { 'removed' }
end

local function whole(number)
    return string.format('%016.0f', number)
end
local id, skew, last, first, folded, life, log = unpack(kept, 2)
if not kept[1] then
    id, skew, last, first, folded, life, log = whole(server), '0', whole(server), '0', whole(0), lives, ''
elseif not (tonumber(skew) and tonumber(last) and tonumber(first) and tonumber(life) and folded and log) then
    return { 'damaged' }
end
-- If the server's clock went back, the bucket's does not. If it went forward in one step, the client's tells how far.
local now, latest = math.max(server + skew, last), known == id and tonumber(expected) or 0
now = latest > 0 and now > latest + LOOK and math.max(latest, last) or now
-- A server that has lost the last operations may have others at the same place since.
local at, read = whole(now), seen - first
local before = read > 0 and string.sub(log, read - 15, read) or folded
local is_known = known == id and read >= 0 and read <= #log and before == stamp

local ahead = now == server + skew and skew or whole(now - server)
if operation ~= '' or snapshot ~= '' or not kept[1] then
    if not kept[1] then
        redis.call('HSET', key, 'v', FORMAT, 'id', id, 'first', first, 'folded', folded)
    end
    local longer = (kept[1] and log or make .. at) .. (operation ~= '' and operation .. at or '')
    local longest = tonumber(lives) > tonumber(life) and lives or life
    redis.call('HSET', key, 'skew', ahead, 'last', at, 'life', longest, 'log', longer)
    local refused = redis.pcall('PEXPIRE', key, longest)
    if type(refused) == 'table' then -- Then nothing is changed.
        local undo = kept[1] and { 'HSET', key, 'skew', skew, 'last', last, 'life', life, 'log', log }
        redis.call(unpack(undo or { 'DEL', key }))
        return refused
    end
    log = longer
    if snapshot ~= '' and is_known and read > 0 then
        log, first, folded, read = string.sub(log, read + 1), seen, stamp, 0
        redis.call('HSET', key, 's', snapshot, 'folded', folded, 'first', first, 'log', log)
    end
else
    redis.pcall('HSET', key, 'skew', ahead, 'last', at) -- Unless this is a replica, nobody is told an earlier time.
end

if is_known then
    return { 'ok', id, at, first, folded, '', string.sub(log, read + 1) }
end
return { 'anew', id, at, first, folded, asked == 'whole' and redis.call('HGET', key, 's') or '', log }
