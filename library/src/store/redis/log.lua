-- The log of a bucket. This script stamps an operation with the bucket's time, appends it, and returns the part of the
-- log that the client lacks. It does not interpret limits: every client folds the same log.
--
-- KEYS[1]  The bucket: one hash, so that it works in a cluster. The field `v` is the format. The field named after the
--          format is a head and the log: operations, each with its stamp behind it. The log begins at the position
--          `first`, in bytes since the bucket was made. `s` is a snapshot of everything before `first`, and `folded` is
--          the stamp of the last operation in it. `skew` is the bucket's time minus the server's. `last` is the latest
--          time in any answer. The key expires at `ends`, of the server's time. Times are in microseconds. Each call of
--          a command takes longer than everything else here, so there are three.
-- ARGV     1. the kind of request: `whole`, `log` if the client reads the snapshot by another command, or `remove`
--          2. the id of the bucket that the client has, or 0
--          3. the position up to which the client has read the log
--          4. the stamp before that position
--          5. an operation, or nothing
--          6. the operation that makes the bucket, or nothing
--          7. the upper bound of the bucket's time by the client's clock, or 0
--          8. a snapshot of everything that the client has read, or nothing
--          9. how many milliseconds the bucket is kept

local FORMAT, HEAD, HEAD_LENGTH, SECOND, key = '18', '>dddddc8', 48, 1000000, KEYS[1]
local asked, known, seen, stamp, operation, make, expected, snapshot, lives = unpack(ARGV)
local clock = redis.call('TIME')
local server = clock[1] * SECOND + clock[2]
local kept, is_new = redis.pcall('HGET', key, FORMAT), false
if type(kept) ~= 'string' then
    local version = redis.pcall('HGET', key, 'v')
    if kept and not string.find(kept.err, 'WRONGTYPE', 1, true) then
        return kept
    elseif kept or not version and redis.call('EXISTS', key) == 1 then
        return { 'foreign' }
    elseif version and version ~= FORMAT then
        return { 'format', version }
    elseif not version and (make == '' or asked == 'remove') then
        return { 'unknown' }
    end
    kept, is_new = version and '' or struct.pack(HEAD, server, 0, server, 0, 0, string.rep('\0', 8)), not version
end
if asked == 'remove' then
    redis.call('DEL', key)
    return { 'removed' }
elseif #kept < HEAD_LENGTH then
    return { 'damaged' }
end

local id, skew, last, first, ends, folded = struct.unpack(HEAD, kept)
local log, read, is_same = string.sub(kept, HEAD_LENGTH + 1), seen - first, tonumber(known) == id
-- If the server's clock went back, the bucket's does not. If it jumped forward, the client's clock bounds the jump.
local now, latest = math.max(server + skew, last), is_same and tonumber(expected) or 0
now = latest > 0 and now > latest + SECOND and math.max(latest, last) or now
-- A server that has lost the last operations may have other operations at the same position now.
local before = read > 0 and string.sub(log, read - 7, read) or folded
local is_known = is_same and read >= 0 and read <= #log and before == stamp

local changes, replaces = is_new or operation ~= '', snapshot ~= '' and is_known and read > 0
if changes then
    local at = struct.pack('>I4I4', math.floor(now / 2 ^ 32), now % 2 ^ 32)
    log = (is_new and make .. at or log) .. (operation ~= '' and operation .. at or '')
end
if replaces then
    log, first, folded, read = string.sub(log, read + 1), tonumber(seen), stamp, 0
end
-- A client that stays connected renews the expiry once a minute.
local renews = changes and (known == '0' or server + lives * 1000 > ends + 60 * SECOND)
ends = renews and server + lives * 1000 or ends
local head = struct.pack(HEAD, id, now - server, now, first, ends, folded)
local refused = redis.pcall('HSET', key, FORMAT, head .. log)
if type(refused) ~= 'table' then
    refused = renews and redis.pcall('PEXPIRE', key, lives)
    if type(refused) == 'table' then -- Undo: nothing is changed then.
        redis.call(unpack(is_new and { 'DEL', key } or { 'HSET', key, FORMAT, kept }))
    elseif is_new or replaces then
        redis.call('HSET', key, unpack(is_new and { 'v', FORMAT } or { 's', snapshot }))
    end
end
if changes and type(refused) == 'table' then
    return refused -- A replica does not store the time in its answer, so it must not grant anything.
end

if is_known then
    return { 'ok', id, now, first, folded, '', string.sub(log, read + 1) }
end
return { 'anew', id, now, first, folded, asked == 'whole' and redis.call('HGET', key, 's') or '', log }
