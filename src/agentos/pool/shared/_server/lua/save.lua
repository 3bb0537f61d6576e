-- Replaces the entries up to a position by a snapshot.
--
-- KEYS  owner, meta, journal, snapshot
-- ARGV  token, position, seconds that unused keys stay, identity, snapshot
local lock = redis.call('GET', KEYS[1])
local meta = redis.call('HMGET', KEYS[2], 'writer', 'position', 'base')
if lock and lock ~= ARGV[1] or meta[1] and meta[1] ~= ARGV[1] then return 'deposed' end
local position, base = tonumber(meta[2]), tonumber(meta[3])
if not meta[1] or not base or position < tonumber(ARGV[2]) or redis.call('LLEN', KEYS[3]) ~= position - base
  or tonumber(redis.call('HGET', KEYS[4], 'position') or 0) ~= base then return 'missing' end
redis.call('HSET', KEYS[4], 'position', ARGV[2], 'identity', ARGV[4], 'state', ARGV[5])
redis.call('LTRIM', KEYS[3], ARGV[2] - base, -1)
redis.call('HSET', KEYS[2], 'base', ARGV[2])
for _, key in ipairs({KEYS[2], KEYS[3], KEYS[4]}) do redis.call('EXPIRE', key, ARGV[3]) end
return 'ok'
