-- The kept state and the log after it, without changing anything. Nothing if there is no pool.
--
-- KEYS  as in exchange.lua
-- ARGV  our rules
local known = redis.call('HMGET', KEYS[1], 'epoch', 'rules', 'base', 'at', 'alive_until')
if not known[1] then return {} end
local clock = redis.call('TIME')
local now = math.max(clock[1] + clock[2] / 1e6, tonumber(known[4]))
local at = string.format('%.6f', now)
if known[2] ~= ARGV[1] then
  if now <= tonumber(known[5]) then return {'', at} end
  return {}
end
local kept = redis.call('HMGET', KEYS[3], 'position', 'state')
local position = tonumber(kept[1] or 0)
return {known[1], at, kept[2] or '', position, redis.call('LRANGE', KEYS[2], position - known[3], -1)}
