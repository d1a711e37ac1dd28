"""The toy model of `quell bench sim` in salabim: Poisson arrivals, one queue, exponential service."""
import random
import sys
import time

import salabim as sim

servers, gap, service, length = int(sys.argv[1]), *map(float, sys.argv[2:5])
chance = random.Random(1)
latencies = []
sim.yieldless(False)


class Request(sim.Component):
    def process(self):
        arrived = env.now()
        yield self.request(queue)
        yield self.hold(chance.expovariate(1 / service))
        self.release()
        latencies.append(env.now() - arrived)


class Arrivals(sim.Component):
    def process(self):
        while True:
            yield self.hold(chance.expovariate(1 / gap))
            Request()


env = sim.Environment(trace=False)
queue = sim.Resource("queue", capacity=servers)
Arrivals()
began = time.perf_counter()
env.run(till=length)
took = time.perf_counter() - began
print(2 * len(latencies), took, sum(latencies) / len(latencies))
