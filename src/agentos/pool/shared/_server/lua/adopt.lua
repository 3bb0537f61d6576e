-- Makes an owner the writer of the journal, after it has read it. Its content stays as it is.
--
-- KEYS  owner, meta, journal, snapshot
-- ARGV  token, seconds that unused keys stay, then fields of meta and their values
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'deposed' end
if redis.call('TYPE', KEYS[2]).ok ~= 'hash' then redis.call('DEL', KEYS[2]) end
local time = redis.call('TIME')
local server = string.format('%d.%06d', time[1], time[2])
redis.call('HSET', KEYS[2], 'writer', ARGV[1], 'server', server, unpack(ARGV, 3))
for _, key in ipairs({KEYS[2], KEYS[3], KEYS[4]}) do redis.call('EXPIRE', key, ARGV[2]) end
return 'ok'
