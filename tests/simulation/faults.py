"""What goes wrong, and what people do in the meantime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from agentos.testing.rules import DailyQuota
from agentos.testing.scripts import Scripted

from .digests import digest
from .process import Process
from .setting import limits_of

if TYPE_CHECKING:
    from .world import World

HEARTBEAT = 1.0
A_DAY = 86_400.0


def begin(world: World) -> None:
    world.at(0.0, "somebody looks", lambda: _look(world))
    world.at(0.5, "a run is missed", lambda: _relaunch(world))
    _plan_next(world)


def heal(world: World) -> None:
    """From now on nothing goes wrong any more."""
    provider = world.setting.provider
    world.setting.chance_of_failure = 0.0
    provider.overload_for(0.0, now=world.now + world.epoch)
    provider._scripts.clear()
    assert isinstance(provider._limits, dict)
    for rules in (*provider._limits.values(), *provider._rules.values()):
        rules[:] = [rule for rule in rules if not isinstance(rule, DailyQuota)]
    for key in world.setting.keys:
        provider.revive(key)
        provider.refill(key)
    for process in world.everybody:
        if process.link is not None:
            process.link.is_cut = False
            process.link.loses_replies = 0
            process.link.is_cut_after_load = False
            process.link.is_late_by = None
    world.at(world.now, "all keys are good again", lambda: _restore_all(world))


def _restore_all(world: World, times: int = 1) -> None:
    """Some cool down for a day: that is waited for only once in a while."""
    for process in _living(world):
        restore_keys(process)
    if times > 3:
        world.server.offset += A_DAY
        world.stepped_at = world.now
    if not world.is_at_rest():
        seconds = 20.0 if world.memory is None else 20.0 * _patience(world)
        world.at(world.now + seconds, "all keys are good again", lambda: _restore_all(world, times + 1))


def restore_keys(process: Process) -> None:
    for id_ in process.plan.keys:
        if id_ in process.keys:
            process.store.restore(id_)
        else:
            process.add(process.world.setting.keys[id_])


def _plan_next(world: World) -> None:
    seconds = world.chance.expovariate(1.0 / world.setting.faults_every)
    world.at(world.now + seconds, "a fault is due", lambda: _happen(world))


def _happen(world: World) -> None:
    if world.is_calm:
        return
    chance = world.chance
    faults = _OF_ANY + (_OF_MEMORY if world.memory is not None else _OF_STORES)
    fault = chance.choice(faults)
    living = _living(world)
    if living:
        process = chance.choice(living)
        world._tell(fault.__name__.strip("_").replace("_", " "), process)
        fault(world, process)
    _plan_next(world)


def _living(world: World) -> list[Process]:
    return [p for p in world.everybody if not (p.is_dead or p.is_closed) and p.paused_until <= world.now]


def _look(world: World) -> None:
    """Somebody wants to know why things take so long."""
    for process in _living(world):
        for scope in process.admission.scopes()[:1]:
            world.situations.note(f"wait {process.store.waiting_for(scope).reason}")
    if not world.is_at_rest():
        world.at(world.now + HEARTBEAT * _patience(world), "somebody looks", lambda: _look(world))


def _patience(world: World) -> float:
    """When nothing goes wrong any more, it may still take days until limits admit the last items."""
    return 1.0 + (world.now - world.calm_at) / 100.0 if world.is_calm else 1.0


def _relaunch(world: World) -> None:
    """A run that was killed or stopped is continued by the same call."""
    for number, process in enumerate(world.processes):
        is_over = process is not None and (process.is_dead or process.is_closed)
        if is_over and not world.ledgers[number].is_complete:
            world.launch(number)
    if not world.is_at_rest():
        world.at(
            world.now + world.chance.uniform(0.2, 3.0) * _patience(world), "a run is missed", lambda: _relaunch(world)
        )


# --- processes --------------------------------------------------------------------------------------------------------


def _crash(world: World, process: Process) -> None:
    world.situations.note("crash")
    world.crash(process)


def _pause(world: World, process: Process) -> None:
    seconds = world.chance.choice([0.5, 1.5, 1.2 * world.setting.ttl, 3.0 * world.setting.ttl])
    process.paused_until = world.now + seconds
    if seconds > world.setting.ttl:
        world.situations.note("pause past ttl")


def _pause_and_take_over(world: World, process: Process) -> None:
    """Somebody takes it for dead and continues its run; then it wakes."""
    number = world.processes.index(process) if process in world.processes else None
    if number is None or process.run.is_over():
        return
    process.paused_until = world.now + world.chance.uniform(1.0, 2.0 * world.setting.ttl)
    process.ledger.killed([attempt.item.id for attempt in process.leased])
    world.launch(number)


def _stop(world: World, process: Process) -> None:
    process.stop("Ctrl-C")


def _crash_of_all(world: World, process: Process) -> None:
    """In memory a pool dies with its process."""
    world.situations.note("crash")
    for each in world.everybody:
        world.crash(each)
    world.open_memory()


# --- the store --------------------------------------------------------------------------------------------------------


def _cut(world: World, process: Process) -> None:
    link = process.link
    assert link is not None
    link.is_cut = True

    def mend() -> None:
        link.is_cut = False

    world.at(world.now + world.chance.choice([0.3, 2.0, 2.0 * world.setting.ttl]), "a cut is mended", mend)


def _cut_after_load(world: World, process: Process) -> None:
    assert process.link is not None
    process.link.is_cut_after_load = True


def _cut_all(world: World, process: Process) -> None:
    for each in world.everybody:
        if each.link is not None:
            _cut(world, each)


def _lose_reply(world: World, process: Process) -> None:
    assert process.link is not None
    process.link.loses_replies = world.chance.randint(1, 3)


def _delay_batch(world: World, process: Process) -> None:
    assert process.link is not None
    process.link.is_late_by = world.chance.choice([0.2, 1.0, 1.5 * world.setting.ttl])


def _flush(world: World, process: Process) -> None:
    if world.chance.random() < 0.3 and world.server.epoch:
        world.situations.note("flush")
        world.server.flush()


def _restart(world: World, process: Process) -> None:
    if world.chance.random() < 0.3 and world.server.epoch and world.server.entries:
        world.situations.note("restart with losses")
        world.server.restart(world.chance.choice([0, 1, 5, 30]))


def _step_clock(world: World, process: Process) -> None:
    """Not further back, all in all, than leases live: fences count on that."""
    server = world.server
    if world.chance.random() < 0.5:
        seconds = world.chance.uniform(0.1, 0.4 * world.setting.ttl)
        if server.offset - seconds > world.epoch - 0.8 * world.setting.ttl:
            world.situations.note("clock step back")
            server.offset -= seconds
    else:
        world.situations.note("clock step forward")
        world.stepped_at = world.now
        server.offset += world.chance.choice([0.5, 5.0, 3600.0])


# --- providers --------------------------------------------------------------------------------------------------------


def _kill_key(world: World, process: Process) -> None:
    key = world.chance.choice(sorted(world.setting.keys))
    world.setting.provider.kill(key)

    def revive() -> None:
        world.setting.provider.revive(key)

    world.at(world.now + world.chance.uniform(1.0, 60.0), "a key is valid again", revive)


def _exhaust(world: World, process: Process) -> None:
    key = world.chance.choice(sorted(world.setting.keys))
    world.setting.provider.exhaust(key, status=world.chance.choice([402, 429]))

    def refill() -> None:
        world.setting.provider.refill(key)

    world.at(world.now + world.chance.uniform(0.5, 5.0), "a quota is there again", refill)


def _overload(world: World, process: Process) -> None:
    world.setting.provider.overload_for(world.chance.uniform(0.1, 4.0), now=world.now + world.epoch)


def _say_anything(world: World, process: Process) -> None:
    kinds = ("limit", "quota", "dead", "overloaded", "forbidden", "bad_request", "server_error")
    answers = [
        Scripted(world.chance.choice(kinds), retry_after=world.chance.choice([None, 0.0, -1.0, 0.5, 3.0, 40.0, 1e7]))
        for _ in range(world.chance.randint(1, 4))
    ]
    world.setting.provider.script(answers)


# --- people -----------------------------------------------------------------------------------------------------------


def _drop_key(world: World, process: Process) -> None:
    if len(process.keys) > 1 and process.member is not None:
        id_ = world.chance.choice(sorted(process.keys))
        del process.keys[id_]
        process.store.remove(id_)


def _add_key(world: World, process: Process) -> None:
    missing = sorted(set(world.setting.keys) - set(process.keys))
    if missing and process.member is not None:
        if len(process.admission):
            world.situations.note("credential added while somebody waits")
        process.add(world.setting.keys[world.chance.choice(missing)])


def _redeclare_key(world: World, process: Process) -> None:
    """One process knows better what a key may do."""
    if process.member is None:
        return
    world.has_changed_keys = True
    id_ = world.chance.choice(sorted(process.keys))
    key = process.keys[id_]
    group = world.chance.choice([key.group, key.group, key.group, "g0"])
    process.add(replace(key, limits=limits_of(world.chance, world.setting.kind), group=group))


def _quarantine_key(world: World, process: Process) -> None:
    process.store.quarantine(world.chance.choice(sorted(process.keys)), "a person said so")


def _restore_key(world: World, process: Process) -> None:
    process.store.restore(world.chance.choice(sorted(process.keys)))


def _cool_key(world: World, process: Process) -> None:
    process.store.cool(world.chance.choice(sorted(process.keys)), world.chance.choice([0.2, 2.0, 20.0]))


def _call(world: World, process: Process) -> None:
    for _ in range(world.chance.randint(1, 4)):
        process.call(world.chance.choice([0.05, 0.5, 5.0]))


def _say_it_again(world: World, process: Process) -> None:  # invariants 14, 15
    """What has ended is ended once more, settled, used: nothing changes."""
    if not process.ended_records:
        return
    world.situations.note("late release")
    record = world.chance.choice(list(process.ended_records))
    if world.memory is not None:
        world.memory.available()  # what is due is done
    before = None if world.memory is None else digest(world.memory._pool)
    batches = None if process.member is None else len(process.member._box.statements)
    process.store.end(record, None, True)
    process.store.settle(record, 5, 5000)
    process.store.use_more(record, 5, 5000)
    process.store.cool_and_end(record, 60.0)
    if world.memory is None:
        assert process.member is not None
        assert len(process.member._box.statements) == batches, "a late word was said"
    else:
        assert digest(world.memory._pool) == before, "a late word has changed something"


Fault = Callable[["World", Process], None]
_OF_ANY: tuple[Fault, ...] = (
    _stop, _kill_key, _exhaust, _overload, _say_anything, _say_anything, _drop_key, _add_key, _redeclare_key,
    _quarantine_key, _restore_key, _cool_key, _call, _call, _say_it_again,
)  # fmt: skip
_OF_MEMORY: tuple[Fault, ...] = (_crash_of_all,)
_OF_STORES: tuple[Fault, ...] = (
    _crash, _crash, _pause, _pause, _pause_and_take_over, _cut, _cut_all, _cut_after_load, _lose_reply, _lose_reply,
    _delay_batch, _flush, _restart, _step_clock,
)  # fmt: skip
