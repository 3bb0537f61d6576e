-- Tells the members that an owner listens, if it still has the lock that it was started with.
--
-- KEYS  owner, meta, journal, snapshot
-- ARGV  token, milliseconds that the lock lives, channel, nonce
local lock = redis.call('GET', KEYS[1])
if lock ~= ARGV[1] and lock ~= ARGV[1] .. ':starting' then return 'deposed' end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 'ok'
