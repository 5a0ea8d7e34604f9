-- The log of a bucket. It stamps an operation with the bucket's time, appends it, and returns what the client has not
-- seen. It knows nothing of limits: every client folds the same log.
--
-- KEYS[1]  the bucket: one hash, so that it works in a cluster. `v` is the format, `skew` the bucket's time less the
--          server's, `last` the last stamp, `life` for how long the bucket is kept. The operations from `first` up to
--          `next` have their index as the field; `s` is a snapshot of all before, and `folded` the stamp of the last of
--          them. Times are in microseconds.
-- ARGV     what is asked; the id of the bucket that the client knows, the next index and the last stamp that it has seen;
--          an operation, or nothing; the operation that makes the bucket, or nothing; the latest that its clock can be by
--          the client's own, or 0; a snapshot of all that the client has seen, or nothing; for how many milliseconds the
--          bucket is kept.

local FORMAT, LOOK, key = '2', 1000000, KEYS[1]
local asked, known, seen, stamp, operation, make, expected, snapshot = unpack(ARGV)
local clock = redis.call('TIME')
local server = clock[1] * 1000000 + clock[2]
local kept = redis.pcall('HMGET', key, 'v', 'id', 'skew', 'last', 'first', 'next', 'life', 'folded')
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
    return string.format('%.0f', number)
end
local id, skew, last = kept[2] or whole(server), tonumber(kept[3] or 0), tonumber(kept[4] or server)
local first, next, folded = tonumber(kept[5] or 0), tonumber(kept[6] or 0), kept[8] or '0'
local life = math.max(tonumber(kept[7] or 0) or 0, tonumber(ARGV[9]))
if not (skew and last and first and next) or next - first > 1000000 then
    return { 'damaged' }
end
-- If the server's clock went back, the bucket's does not. If it went forward in one step, the client's tells how far.
local now, latest = math.max(server + skew, last), known == id and tonumber(expected) or 0
now, seen = latest > 0 and now > latest + LOOK and math.max(latest, last) or now, tonumber(seen)
-- A server that has lost the last operations may have others at the same index since.
local before = seen > first and seen <= next and string.match(redis.call('HGET', key, whole(seen - 1)) or '', '^%d+')
local is_known = known == id and (before or seen == first and folded) == stamp

local fields = { 'id', id, 'skew', whole(now - server), 'last', whole(now), 'life', whole(life) }
if operation ~= '' or not kept[1] or snapshot ~= '' then
    -- First what is refused to users without all permissions, or by a full server: then nothing is changed.
    redis.call('HSET', key, 'v', FORMAT)
    local refused = redis.pcall('PEXPIRE', key, life)
    if type(refused) == 'table' then
        if not kept[1] then redis.call('DEL', key) end
        return refused
    end
    for _, record in ipairs({ kept[1] and '' or make, operation }) do
        if record ~= '' then
            fields[#fields + 1], fields[#fields + 2], next = whole(next), whole(now) .. ' ' .. record, next + 1
        end
    end
    if snapshot ~= '' and is_known and before then
        for index = first, seen - 1 do
            redis.call('HDEL', key, whole(index))
        end
        redis.call('HSET', key, 's', snapshot, 'folded', stamp, 'first', whole(seen))
        first, folded = seen, stamp
    end
    redis.call('HSET', key, 'first', whole(first), 'next', whole(next), unpack(fields))
elseif now ~= server + skew then
    redis.pcall('HSET', key, unpack(fields)) -- The bucket's time goes on from there, unless this is a replica.
end

local from = is_known and seen or first
local answer = { 'ok', id, whole(now), whole(from), folded, not is_known and redis.call('HGET', key, 's') or '' }
for index = from, next - 1 do
    answer[#answer + 1] = redis.call('HGET', key, whole(index))
end
return answer
