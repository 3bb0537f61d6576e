-- Appends a batch to the journal and publishes frames, if this owner still has the pool and the journal is complete.
-- A batch that was appended already (its reply was lost) is not appended again.
--
-- KEYS  owner, meta, journal, snapshot
-- ARGV  token, milliseconds that the lock lives, position before the batch, batch ('': none), then channel and frame
--       of each message
-- Returns the number of receivers of each message.
local lock = redis.call('GET', KEYS[1])
local meta = redis.call('HMGET', KEYS[2], 'writer', 'position', 'base')
if lock and lock ~= ARGV[1] or meta[1] and meta[1] ~= ARGV[1] then return 'deposed' end
local position, base, before = tonumber(meta[2]), tonumber(meta[3]), tonumber(ARGV[3])
local has_batch = ARGV[4] ~= ''
if not meta[1] or not base or position ~= before and not (has_batch and position == before + 1)
  or redis.call('LLEN', KEYS[3]) ~= position - base
  or tonumber(redis.call('HGET', KEYS[4], 'position') or 0) ~= base then return 'missing' end
if not lock then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
if has_batch and position == before then
  redis.call('RPUSH', KEYS[3], ARGV[4])
  redis.call('HINCRBY', KEYS[2], 'position', 1)
end
local receivers = {}
for i = 5, #ARGV, 2 do receivers[#receivers + 1] = redis.call('PUBLISH', ARGV[i], ARGV[i + 1]) end
return receivers
