"""Messages: in order within a lane, late and twice when told so."""

from __future__ import annotations

from functools import partial

from common.core.ids import WorkerId
from common.sim.agenda import Agenda
from common.sim.network import Lane, Network, NetworkSettings

W = WorkerId("w")
Arrival = tuple[float, int, int]


def deliver(settings: NetworkSettings, *, lanes: int, messages: int, once: bool = False) -> list[Arrival]:
    """Send `messages` on each lane, a millisecond apart; (time, lane, number) as they arrive."""
    agenda = Agenda()
    network = Network(agenda, settings, seed=1)
    arrived: list[Arrival] = []

    def take(lane: int, number: int) -> None:
        arrived.append((agenda.now, lane, number))

    for lane_number in range(lanes):
        lane = Lane()
        for number in range(messages):
            send = partial(network.send, lane, W, take, lane_number, number, once=once)
            agenda.at(number * 0.001, send)
    while agenda.step():
        pass
    return arrived


def test_a_quiet_network_delays_and_nothing_else():
    assert deliver(NetworkSettings(delay_s=0.5), lanes=1, messages=2) == [(0.5, 0, 0), (0.501, 0, 1)]


def test_late_messages_are_overtaken_by_other_lanes_only():
    arrived = deliver(NetworkSettings(reorder_rate=0.3), lanes=20, messages=20)
    by_lane = [[number for _, lane, number in arrived if lane == wanted] for wanted in range(20)]
    assert all(numbers == list(range(20)) for numbers in by_lane)
    sent_in_order = sorted((number, lane) for _, lane, number in arrived)
    assert [(number, lane) for _, lane, number in arrived] != sent_in_order


def test_messages_come_twice_unless_the_transport_forbids():
    settings = NetworkSettings(duplicate_rate=0.5)
    assert 130 < len(deliver(settings, lanes=10, messages=10)) < 170
    assert len(deliver(settings, lanes=10, messages=10, once=True)) == 100


def test_a_slow_link_slows_its_own_worker():
    agenda = Agenda()
    network = Network(agenda, NetworkSettings(delay_s=0.01), seed=0)
    network.slow[W] = 50.0
    assert network.delay_s(W) == 0.5
    assert network.delay_s(WorkerId("other")) == network.delay_s(None) == 0.01


def test_equal_times_happen_in_the_order_they_were_put_down():
    agenda = Agenda()
    seen: list[object] = []
    for number in range(5):
        agenda.at(1.0, seen.append, number)
    agenda.at(0.5, seen.append, "first")
    while agenda.step():
        pass
    assert seen == ["first", 0, 1, 2, 3, 4]
