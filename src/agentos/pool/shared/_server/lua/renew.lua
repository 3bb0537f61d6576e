-- Renews the lock of an owner, and notes how far the clocks are. The owner hears its own message to itself.
--
-- KEYS  owner, meta, journal, snapshot
-- ARGV  token, milliseconds that the lock lives, position, the pool's clock, the owner's wall clock, the server's start,
--       seconds that unused keys stay ('': as before), channel, message
local lock = redis.call('GET', KEYS[1])
local meta = redis.pcall('HMGET', KEYS[2], 'writer', 'position')
if meta.err then meta = {} end
if lock and lock ~= ARGV[1] or meta[1] and meta[1] ~= ARGV[1] then return 'deposed' end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if meta[1] and meta[2] == ARGV[3] then
  local time = redis.call('TIME')
  local server = string.format('%d.%06d', time[1], time[2])
  redis.call('HSET', KEYS[2], 'at', ARGV[4], 'wall', ARGV[5], 'server', server, 'run_id', ARGV[6])
  if ARGV[7] ~= '' then
    for _, key in ipairs({KEYS[2], KEYS[3], KEYS[4]}) do redis.call('EXPIRE', key, ARGV[7]) end
  end
end
redis.call('PUBLISH', ARGV[8], ARGV[9])
return 'ok'
