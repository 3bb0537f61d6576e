-- Returns the content of a journal, and the server's time. A key of another type counts as missing.
--
-- KEYS  owner, meta, journal, snapshot
local function read(...)
  local found = redis.pcall(...)
  return found.err and {} or found
end
return {
  read('HGETALL', KEYS[2]), read('LRANGE', KEYS[3], 0, -1), read('HGETALL', KEYS[4]), redis.call('TIME'),
  redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]),
}
