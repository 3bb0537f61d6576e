-- Returns the lock's value, the number of owners that listen, and the start of the server in which the journal was written
-- last ('': not known; nil: there is no journal).
--
-- KEYS  owner, meta, journal, snapshot
-- ARGV  channel on which the owner listens
local run_id = redis.pcall('HGET', KEYS[2], 'run_id')
if type(run_id) == 'table' then run_id = '' end
return {redis.call('GET', KEYS[1]), redis.call('PUBSUB', 'NUMSUB', ARGV[1])[2], run_id}
