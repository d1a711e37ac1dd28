"""The toy model of `quell bench sim` in SimPy: Poisson arrivals, one queue, exponential service."""
import random
import sys
import time

import simpy

servers, gap, service, length = int(sys.argv[1]), *map(float, sys.argv[2:5])
chance = random.Random(1)
answered = 0
latency = 0.0


def resident(name):
    """MB, by a line of /proc/self/status."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1e3 for line in status if line.startswith(name))


def request(env, queue):
    global answered, latency
    arrived = env.now
    with queue.request() as slot:
        yield slot
        yield env.timeout(chance.expovariate(1 / service))
    answered += 1
    latency += env.now - arrived


def arrivals(env, queue):
    while True:
        yield env.timeout(chance.expovariate(1 / gap))
        env.process(request(env, queue))


env = simpy.Environment()
env.process(arrivals(env, simpy.Resource(env, servers)))
before = resident("VmRSS:")
began = time.perf_counter()
env.run(until=length)
took = time.perf_counter() - began
print(2 * answered, took, latency / answered, before, resident("VmHWM:"))
