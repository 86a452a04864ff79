import operator
from concurrent.futures import ThreadPoolExecutor

from data_prep.run.workers import ordered_map, worker_pool


def test_a_pool_gives_the_results_in_order():
    with ThreadPoolExecutor(2) as pool:
        assert list(ordered_map(operator.neg, range(9), pool)) == list(ordered_map(operator.neg, range(9), None))


def test_results_do_not_pile_up():
    started = []
    with ThreadPoolExecutor(2) as pool:
        results = ordered_map(started.append, range(100), pool, ahead=3)
        next(results)
        assert len(started) <= 4


def test_one_worker_is_this_process():
    with worker_pool(1) as pool:
        assert pool is None
