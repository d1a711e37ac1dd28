// Prints how many thousand ticks a second this host's time stamp counter makes, which is that of an emulated machine.
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

static long long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

int main(void)
{
	struct timespec pause = {.tv_nsec = 100000000};
	long long from = now_ns(), ticks = __rdtsc();

	nanosleep(&pause, NULL);
	ticks = __rdtsc() - ticks;
	printf("%lld\n", ticks * 1000000 / (now_ns() - from));
	return 0;
}
