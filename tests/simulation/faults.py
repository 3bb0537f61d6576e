"""Faults and user actions that a history injects: of processes, of the store, of providers, and of people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from agentos.testing.rules import DailyQuota
from agentos.testing.scripts import Scripted

from . import journal_store, links
from .digests import digest
from .process import Process
from .scenario import make_limits

if TYPE_CHECKING:
    from .journal_store import OwnerProcess
    from .links import SimulatedLink
    from .world import World

WAIT_REASON_INTERVAL = 1.0  # seconds between two queries of why requests wait
DAY = 86_400.0


def start(world: World) -> None:
    """Schedule the first fault, and the jobs that query wait reasons and relaunch runs."""
    world.schedule(0.0, "wait reasons are queried", lambda: _explain_waits(world))
    world.schedule(0.5, "stopped runs are relaunched", lambda: _relaunch(world))
    _schedule_next(world)


def stop(world: World) -> None:
    """Undo all faults and inject no more."""
    provider = world.scenario.provider
    world.scenario.failure_probability = 0.0
    provider.overload_for(0.0, now=world.now + world.epoch)
    provider._scripts.clear()
    assert isinstance(provider._limits, dict)
    for rules in (*provider._limits.values(), *provider._rules.values()):
        rules[:] = [rule for rule in rules if not isinstance(rule, DailyQuota)]
    for key in world.scenario.keys:
        provider.revive(key)
        provider.refill(key)
    for process in world.all_processes:
        process.is_cut = False
    if world.store.owner is not None:
        world.store.owner.endpoint.crash_at = None
    world.schedule(world.now, "all keys are good again", lambda: _restore_all(world))


def _restore_all(world: World, times: int = 1) -> None:
    """Restore all keys, repeatedly: some cool down for a day, so after three rounds a day is skipped."""
    for process in _living(world):
        restore_keys(process)
    if times > 3:
        world.now += DAY
    if not world.is_finished():
        seconds = 20.0 if world.memory is None else 20.0 * _interval_factor(world)
        world.schedule(world.now + seconds, "all keys are good again", lambda: _restore_all(world, times + 1))


def restore_keys(process: Process) -> None:
    for id_ in process.plan.keys:
        if id_ in process.keys:
            process.store.restore(id_)
        else:
            process.add(process.world.scenario.keys[id_])


def _schedule_next(world: World) -> None:
    seconds = world.rng.expovariate(1.0 / world.scenario.mean_fault_interval)
    world.schedule(world.now + seconds, "a fault is injected", lambda: _inject(world))


def _inject(world: World) -> None:
    if world.has_stopped_faults:
        return
    rng = world.rng
    faults = _COMMON_FAULTS + (_MEMORY_FAULTS if world.memory is not None else _SHARED_STORE_FAULTS)
    fault = rng.choice(faults)
    living = _living(world)
    if living:
        process = rng.choice(living)
        world.log_step(fault.__name__.strip("_").replace("_", " "), process)
        fault(world, process)
    _schedule_next(world)


def _living(world: World) -> list[Process]:
    return [p for p in world.all_processes if not (p.is_dead or p.is_closed) and p.paused_until <= world.now]


def _explain_waits(world: World) -> None:
    """Ask the pool why the oldest request of each process waits, and count the reason."""
    for process in _living(world):
        for scope in tuple(process.admission.open_by_scope)[:1]:
            world.situations.note(f"wait {process.store.waiting_for(scope).reason}")
    if not world.is_finished():
        world.schedule(
            world.now + WAIT_REASON_INTERVAL * _interval_factor(world),
            "wait reasons are queried",
            lambda: _explain_waits(world),
        )


def _interval_factor(world: World) -> float:
    """Return the factor for periodic jobs: it grows after the last fault, because limits may admit the last items only
    days later."""
    return 1.0 + (world.now - world.faults_stopped_at) / 100.0 if world.has_stopped_faults else 1.0


def _relaunch(world: World) -> None:
    """Launch runs again that were killed or stopped before all items had an outcome."""
    for number, process in enumerate(world.newest_processes):
        is_over = process is not None and (process.is_dead or process.is_closed)
        if is_over and not world.ledgers[number].is_complete:
            world.launch(number)
    if not world.is_finished():
        world.schedule(
            world.now + world.rng.uniform(0.2, 3.0) * _interval_factor(world),
            "stopped runs are relaunched",
            lambda: _relaunch(world),
        )


# --- processes --------------------------------------------------------------------------------------------------------


def _crash(world: World, process: Process) -> None:
    world.situations.note("crash")
    world.crash(process)


def _pause(world: World, process: Process) -> None:
    seconds = world.rng.choice([0.5, 1.5, 1.2 * world.scenario.ttl, 3.0 * world.scenario.ttl])
    process.paused_until = world.now + seconds
    if seconds > world.scenario.ttl:
        world.situations.note("pause past ttl")


def _pause_and_take_over(world: World, process: Process) -> None:
    """Pause a process and launch its run in another one; the paused process then wakes as a zombie."""
    number = world.newest_processes.index(process) if process in world.newest_processes else None
    if number is None or process.run.is_over():
        return
    process.paused_until = world.now + world.rng.uniform(1.0, 2.0 * world.scenario.ttl)
    process.ledger.killed([attempt.item.id for attempt in process.leased_attempts])
    world.launch(number)


def _stop(world: World, process: Process) -> None:
    process.stop("Ctrl-C")


def _crash_of_all(world: World, process: Process) -> None:
    """Crash all runs together with the pool in memory: they are one process."""
    world.situations.note("crash")
    for victim in world.all_processes:
        world.crash(victim)
    world.open_memory()


# --- the store --------------------------------------------------------------------------------------------------------


def _owner_of(world: World) -> OwnerProcess | None:
    owner = world.store.owner
    return None if owner is None or owner.is_dead else owner


def _kill_owner(world: World, process: Process) -> None:
    owner = _owner_of(world)
    if owner is not None:
        if len(owner.owner.allocator.queue):
            world.situations.note("owner killed while requests wait")
        owner.kill()


def _kill_owner_at_step(world: World, process: Process) -> None:
    owner = _owner_of(world)
    if owner is not None:
        owner.endpoint.crash_at = world.rng.choice(journal_store.STEPS)


def _pause_owner(world: World, process: Process) -> None:
    owner = _owner_of(world)
    if owner is not None:
        owner.paused_until = world.now + world.rng.choice([0.5, 3.0, 8.0, 3.0 * world.scenario.ttl])


def _suspend_machine(world: World, process: Process) -> None:
    """Stop everything for a while; all clocks that pass evenly go on."""
    world.situations.note("machine suspended")
    until = world.now + world.rng.choice([3.0, 60.0, 600.0])
    for sleeper in (*world.all_processes, *world.store.processes):
        sleeper.paused_until = max(sleeper.paused_until, until)


def _link_of(process: Process) -> SimulatedLink | None:
    return None if process.member is None else process.member.link


def _break_link(world: World, process: Process) -> None:
    link = _link_of(process)
    if link is not None:
        link.break_for_member(0.0)


def _lose_message(world: World, process: Process) -> None:
    _disturb(process, "lose_next", True)


def _lose_reply(world: World, process: Process) -> None:
    _disturb(process, "tell_lose_next", True)


def _double_message(world: World, process: Process) -> None:
    _disturb(process, "double_next", True)


def _delay_message(world: World, process: Process) -> None:
    if _link_of(process) is not None:
        _disturb(process, "late_by", world.rng.choice([0.2, 1.0, 6.0, 1.5 * world.scenario.ttl]))


def _disturb(process: Process, fault: str, value: float) -> None:
    """Set a fault of the link of a process, if it has one."""
    link = _link_of(process)
    if link is not None:
        setattr(link, fault, value)


def _disconnect(world: World, process: Process) -> None:
    """Cut a process off from the server. The owner notices that its subscription is gone."""
    if not world.store.is_server:
        return
    process.is_cut = True
    link = _link_of(process)

    def reconnect() -> None:
        process.is_cut = False

    def notice() -> None:
        if process.is_cut and link is not None:
            link._close_at_owner()

    world.schedule(world.now + links.ABSENCE_SECONDS, "a member's subscription is gone", notice)
    seconds = world.rng.choice([0.3, 2.0, 2.0 * world.scenario.ttl])
    world.schedule(world.now + seconds, "a connection is restored", reconnect)


def _disconnect_all(world: World, process: Process) -> None:
    for victim in world.all_processes:
        _disconnect(world, victim)


def _flush(world: World, process: Process) -> None:
    if world.rng.random() < 0.3:
        world.situations.note("flush")
        if world.rng.random() < 0.5:
            _kill_owner(world, process)
        world.store.flush()


def _lose_end(world: World, process: Process) -> None:
    if world.rng.random() < 0.3 and world.store.batches:
        world.situations.note("end of the journal lost")
        world.store.lose_end(world.rng.choice([1, 5, 30]))


def _fail_journal(world: World, process: Process) -> None:
    owner = _owner_of(world)
    if owner is not None:
        owner.endpoint.failures = world.rng.randint(1, 4)


def _step_clock(world: World, process: Process) -> None:
    """Set the wall clock. Only the days of providers depend on it."""
    world.situations.note("clock stepped")
    world.has_stepped_clock = True
    world.store.wall_ahead += world.rng.choice([-3600.0, 3600.0, 86_400.0])
    for owner in world.store.processes:
        owner.oracle.has_other_days = True


# --- providers --------------------------------------------------------------------------------------------------------


def _invalidate_key(world: World, process: Process) -> None:
    key = world.rng.choice(sorted(world.scenario.keys))
    world.scenario.provider.kill(key)

    def revive() -> None:
        world.scenario.provider.revive(key)

    world.schedule(world.now + world.rng.uniform(1.0, 60.0), "a key is valid again", revive)


def _exhaust(world: World, process: Process) -> None:
    key = world.rng.choice(sorted(world.scenario.keys))
    world.scenario.provider.exhaust(key, status=world.rng.choice([402, 429]))

    def refill() -> None:
        world.scenario.provider.refill(key)

    world.schedule(world.now + world.rng.uniform(0.5, 5.0), "a quota is there again", refill)


def _overload(world: World, process: Process) -> None:
    world.scenario.provider.overload_for(world.rng.uniform(0.1, 4.0), now=world.now + world.epoch)


def _script_answers(world: World, process: Process) -> None:
    kinds = ("limit", "quota", "dead", "overloaded", "forbidden", "bad_request", "server_error")
    answers = [
        Scripted(world.rng.choice(kinds), retry_after=world.rng.choice([None, 0.0, -1.0, 0.5, 3.0, 40.0, 1e7]))
        for _ in range(world.rng.randint(1, 4))
    ]
    world.scenario.provider.script(answers)


# --- people -----------------------------------------------------------------------------------------------------------


def _drop_key(world: World, process: Process) -> None:
    if len(process.keys) > 1 and process.member is not None:
        id_ = world.rng.choice(sorted(process.keys))
        del process.keys[id_]
        process.store.remove(id_)


def _add_key(world: World, process: Process) -> None:
    missing = sorted(set(world.scenario.keys) - set(process.keys))
    if missing and process.member is not None:
        if process.admission.open_by_scope:
            world.situations.note("credential added while a request waits")
        process.add(world.scenario.keys[world.rng.choice(missing)])


def _redeclare_key(world: World, process: Process) -> None:
    """Declare other limits, or another quota group, for a key in one process."""
    if process.member is None:
        return
    world.has_redeclared_keys = True
    id_ = world.rng.choice(sorted(process.keys))
    key = process.keys[id_]
    group = world.rng.choice([key.group, key.group, key.group, "g0"])
    process.add(replace(key, limits=make_limits(world.rng, world.scenario.kind), group=group))


def _quarantine_key(world: World, process: Process) -> None:
    process.store.quarantine(world.rng.choice(sorted(process.keys)), "quarantined by a user")


def _restore_key(world: World, process: Process) -> None:
    process.store.restore(world.rng.choice(sorted(process.keys)))


def _cool_key(world: World, process: Process) -> None:
    process.store.cool(world.rng.choice(sorted(process.keys)), world.rng.choice([0.2, 2.0, 20.0]))


def _call(world: World, process: Process) -> None:
    for _ in range(world.rng.randint(1, 4)):
        process.call(world.rng.choice([0.05, 0.5, 5.0]))


def _repeat_end_of_lease(world: World, process: Process) -> None:  # invariants 14, 15
    """Release, settle and use an ended lease once more: nothing changes."""
    if not process.ended_records:
        return
    world.situations.note("late release")
    record = world.rng.choice(list(process.ended_records))
    if world.memory is not None:
        world.memory.available()  # advances the pool to now
    before = None if world.memory is None else digest(world.memory._allocator)
    messages = None if process.member is None else process.member._numbers
    process.store.end(record, None, True)
    process.store.settle(record, 5, 5000)
    process.store.use_more(record, 5, 5000)
    process.store.cool_and_end(record, 60.0)
    if world.memory is None:
        assert process.member is not None
        assert process.member._numbers == messages or record.is_lost, "a message was sent for an ended lease"
    else:
        assert digest(world.memory._allocator) == before, "an ended lease changed the pool"


Fault = Callable[["World", Process], None]
_COMMON_FAULTS: tuple[Fault, ...] = (
    _stop, _invalidate_key, _exhaust, _overload, _script_answers, _script_answers, _drop_key, _add_key, _redeclare_key,
    _quarantine_key, _restore_key, _cool_key, _call, _call, _repeat_end_of_lease,
)  # fmt: skip
_MEMORY_FAULTS: tuple[Fault, ...] = (_crash_of_all,)
_SHARED_STORE_FAULTS: tuple[Fault, ...] = (
    _crash, _crash, _pause, _pause, _pause_and_take_over, _kill_owner, _kill_owner_at_step, _kill_owner_at_step,
    _kill_owner_at_step, _pause_owner, _pause_owner, _suspend_machine, _break_link, _lose_message, _lose_reply,
    _double_message, _delay_message, _disconnect, _disconnect_all, _flush, _lose_end, _fail_journal, _step_clock,
)  # fmt: skip
