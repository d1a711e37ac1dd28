"""The toy model of `quell bench sim` in SimPy: Poisson arrivals, one queue, exponential service."""
import random
import sys
import time

import simpy

servers, gap, service, length = int(sys.argv[1]), *map(float, sys.argv[2:5])
chance = random.Random(1)
latencies = []
events = 0


def request(env, queue):
    global events
    arrived = env.now
    with queue.request() as slot:
        yield slot
        yield env.timeout(chance.expovariate(1 / service))
    latencies.append(env.now - arrived)
    events += 2


def arrivals(env, queue):
    while True:
        yield env.timeout(chance.expovariate(1 / gap))
        env.process(request(env, queue))


env = simpy.Environment()
env.process(arrivals(env, simpy.Resource(env, servers)))
began = time.perf_counter()
env.run(until=length)
took = time.perf_counter() - began
print(events, took, sum(latencies) / len(latencies))
