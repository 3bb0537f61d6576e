-- Appends a batch to the log, if there is one, and returns what stands there after a position.
--
-- KEYS[1]  hash: epoch, rules, server, base (so many entries were removed), at (the last instant), alive_until,
--          doubt (leases may have been forgotten, and nobody has said so yet)
-- KEYS[2]  list: the log, "INSTANT BATCH"
-- KEYS[3]  hash: position, state
-- ARGV     epoch, position, seconds that the sender's leases live, channel, batch
local known = redis.call('HMGET', KEYS[1], 'epoch', 'base', 'at', 'alive_until', 'doubt')
if known[1] ~= ARGV[1] then return {known[1] or ''} end
local clock = redis.call('TIME')
local now = math.max(clock[1] + clock[2] / 1e6, tonumber(known[3]))
local at = string.format('%.6f', now)
local base, position = tonumber(known[2]), tonumber(ARGV[2])
if ARGV[5] ~= '' then
  local entry = at .. ' ' .. ARGV[5]
  local last = base + redis.call('RPUSH', KEYS[2], entry)
  redis.call('HSET', KEYS[1], 'at', at, 'alive_until', math.max(now + ARGV[3], tonumber(known[4])))
  if known[5] then redis.call('HDEL', KEYS[1], 'doubt') end
  redis.call('PUBLISH', ARGV[4], last .. ' ' .. entry)
end
if position < base then return {known[1], at} end
return {known[1], at, redis.call('LRANGE', KEYS[2], position - base, -1)}
