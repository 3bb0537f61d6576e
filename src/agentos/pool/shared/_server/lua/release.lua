-- Removes the lock if it has a value: by an owner that ends, or by a member that replaces a silent owner.
--
-- KEYS  owner, meta, journal, snapshot
-- ARGV  value
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 'ok'
