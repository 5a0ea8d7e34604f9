-- What the script of the Redis store asks of a server, for one key that never expires.
local hash, now = nil, 0

-- How many commands were asked for, and how many bytes of fields were read and written.
calls, bytes = 0, 0

local function counted(text)
    bytes = bytes + #(text or '')
    return text or false
end

redis = {}

function redis.call(name, key, ...)
    local args = { ... }
    calls = calls + 1
    if name == 'TIME' then
        return { string.format('%.0f', math.floor(now / 1000000)), string.format('%.0f', now % 1000000) }
    elseif name == 'EXISTS' then
        return hash and 1 or 0
    elseif name == 'HGET' then
        return counted(hash and hash[args[1]])
    elseif name == 'HMGET' then
        local found = {}
        for place, field in ipairs(args) do
            found[place] = counted(hash and hash[field])
        end
        return found
    elseif name == 'HSET' then
        hash = hash or {}
        for place = 1, #args, 2 do
            assert(type(args[place + 1]) == 'string', 'numbers are rounded where they become text')
            hash[args[place]] = counted(args[place + 1])
        end
    elseif name == 'HDEL' then
        for _, field in ipairs(args) do
            hash[field] = nil
        end
    elseif name == 'PEXPIRE' then
        return 1
    elseif name == 'DEL' then
        hash = nil
    else
        error('no command ' .. name)
    end
end

redis.pcall = redis.call

-- Whole numbers of eight bytes each, the lowest first.
struct = {}

function struct.pack(format, ...)
    local words = {}
    for place, number in ipairs({ ... }) do
        local bytes = {}
        for byte = 1, 8 do
            bytes[byte] = string.char(number % 256)
            number = math.floor(number / 256)
        end
        words[place] = table.concat(bytes)
    end
    assert(format == '<' .. string.rep('I8', #words))
    return table.concat(words)
end

function struct.unpack(format, text, first)
    local found, count = {}, (#format - 1) / 2
    for place = 1, count do
        local number, last = 0, (first or 1) + 8 * place - 1
        for byte = last, last - 7, -1 do
            number = number * 256 + string.byte(text, byte)
        end
        found[place] = number
    end
    found[count + 1] = (first or 1) + 8 * count
    return unpack(found)
end

-- Whatever else writes to the key: replaces the value of a field, and returns the one before.
function overwrite(field, value)
    local before = hash[field]
    hash[field] = value
    return before
end

-- How many fields the key has.
function fields()
    local count = 0
    for _ in pairs(hash) do
        count = count + 1
    end
    return count
end

-- Asks the script at a time, with its arguments.
function ask(script, time, ...)
    now, KEYS, ARGV = time, { 'bucket' }, { ... }
    return script()
end
