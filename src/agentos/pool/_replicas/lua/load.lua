-- The kept state and the log after it; a new log if there is none, or only another version's that nobody uses.
-- A server that was started anew may have forgotten the last entries: then everybody has to begin with what is left.
--
-- KEYS  as in exchange.lua
-- ARGV  a new epoch, our rules, the server's name for this start of it, seconds that unused keys stay
local known = redis.call('HMGET', KEYS[1], 'epoch', 'rules', 'server', 'base', 'at', 'alive_until')
local clock = redis.call('TIME')
local now = math.max(clock[1] + clock[2] / 1e6, tonumber(known[5] or 0))
local at = string.format('%.6f', now)
if known[1] and known[2] ~= ARGV[2] and now <= tonumber(known[6]) then return {'', at} end
if not known[1] or known[2] ~= ARGV[2] then
  redis.call('DEL', unpack(KEYS))
  redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'rules', ARGV[2], 'server', ARGV[3], 'base', 0, 'at', at, 'alive_until', at)
  if not known[1] then redis.call('HSET', KEYS[1], 'doubt', 0) end
elseif ARGV[3] ~= '' and known[3] ~= ARGV[3] then
  local last = known[4] + redis.call('LLEN', KEYS[2])
  redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'server', ARGV[3], 'doubt', last)
end
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, ARGV[4]) end
local kept = redis.call('HMGET', KEYS[3], 'position', 'state')
local position = tonumber(kept[1] or 0)
known = redis.call('HMGET', KEYS[1], 'epoch', 'base', 'doubt')
local base = tonumber(known[2])
-- The doubt lasts until somebody has said something: that one had it, too, and said so.
local is_doubtful = base + redis.call('LLEN', KEYS[2]) == tonumber(known[3] or -1)
return {known[1], at, kept[2] or '', position, redis.call('LRANGE', KEYS[2], position - base, -1), is_doubtful and 1 or 0}
