-- Takes the lock of a pool for an owner that is about to be started.
--
-- KEYS  owner, meta, journal, snapshot
-- ARGV  nonce of the new owner, milliseconds that the lock lives, the lock's value as the member has seen it ('': none)
-- Returns the token of the new owner: "EPOCH:NONCE"; nil if the lock has another value by now.
local lock = redis.call('GET', KEYS[1])
if (lock or '') ~= ARGV[3] then return nil end
local writer = redis.pcall('HGET', KEYS[2], 'writer')
if type(writer) ~= 'string' then writer = '' end
local function epoch(token) return tonumber(string.match(token, '^%d+') or 0) end
local token = string.format('%d:%s', math.max(epoch(lock or ''), epoch(writer)) + 1, ARGV[1])
redis.call('SET', KEYS[1], token .. ':starting', 'PX', ARGV[2])
return token
