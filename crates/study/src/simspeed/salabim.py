"""The toy model of `quell bench sim` in salabim: Poisson arrivals, one queue, exponential service."""
import random
import sys
import time

import salabim as sim

servers, gap, service, length = int(sys.argv[1]), *map(float, sys.argv[2:5])
chance = random.Random(1)
answered = 0
latency = 0.0
sim.yieldless(False)


def resident(name):
    """MB, by a line of /proc/self/status."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1e3 for line in status if line.startswith(name))


class Request(sim.Component):
    def process(self):
        global answered, latency
        arrived = env.now()
        yield self.request(queue)
        yield self.hold(chance.expovariate(1 / service))
        self.release()
        answered += 1
        latency += env.now() - arrived


class Arrivals(sim.Component):
    def process(self):
        while True:
            yield self.hold(chance.expovariate(1 / gap))
            Request()


env = sim.Environment(trace=False)
queue = sim.Resource("queue", capacity=servers)
Arrivals()
before = resident("VmRSS:")
began = time.perf_counter()
env.run(till=length)
took = time.perf_counter() - began
print(2 * answered, took, latency / answered, before, resident("VmHWM:"))
