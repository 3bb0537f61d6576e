-- Writes the journal anew from the memory of its owner, unless another owner has the pool.
--
-- KEYS  owner, meta, journal, snapshot
-- ARGV  token, position, seconds that unused keys stay, identity, snapshot, milliseconds that the lock lives, then fields
--       of meta and their values
local lock = redis.call('GET', KEYS[1])
local writer = redis.pcall('HGET', KEYS[2], 'writer')
if lock and lock ~= ARGV[1] or type(writer) == 'string' and writer ~= ARGV[1] then return 'deposed' end
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
redis.call('HSET', KEYS[4], 'position', ARGV[2], 'identity', ARGV[4], 'state', ARGV[5])
local time = redis.call('TIME')
local server = string.format('%d.%06d', time[1], time[2])
redis.call('HSET', KEYS[2], 'writer', ARGV[1], 'position', ARGV[2], 'base', ARGV[2], 'server', server, unpack(ARGV, 7))
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[6])
for _, key in ipairs({KEYS[2], KEYS[4]}) do redis.call('EXPIRE', key, ARGV[3]) end
return 'ok'
