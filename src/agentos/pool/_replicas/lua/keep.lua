-- Keeps a state for those who join later, and removes the entries long before it.
--
-- KEYS  as in exchange.lua
-- ARGV  epoch, position, state, how many entries before it stay, seconds that unused keys stay
local known = redis.call('HMGET', KEYS[1], 'epoch', 'base')
local position = tonumber(ARGV[2])
if known[1] ~= ARGV[1] or position <= tonumber(redis.call('HGET', KEYS[3], 'position') or 0) then return 0 end
redis.call('HSET', KEYS[3], 'position', position, 'state', ARGV[3])
local surplus = position - ARGV[4] - known[2]
if surplus > 0 then
  redis.call('LTRIM', KEYS[2], surplus, -1)
  redis.call('HINCRBY', KEYS[1], 'base', surplus)
end
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, ARGV[5]) end
return 1
