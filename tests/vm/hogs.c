/*
 * Runs recipes of CPU hogs, one after the other, and prints where the kernel keeps them.
 *
 *   hogs RECIPES MACHINE BOUND_MS SETTLE_MS SAMPLE_MS INTERVAL_MS
 *
 * RECIPES has lines `recipe NAME MACHINE`, each followed by lines `hogs COUNT NICE CGROUP CORES START`:
 *   NICE    -20 to 19, or `idle` for SCHED_IDLE
 *   CGROUP  `-`: the root; NAME=WEIGHT: a cgroup with this cpu.weight
 *   CORES   a list of cores that they may use
 *   START   the core in whose queue they all begin
 * For each recipe of MACHINE it prints `@@place NAME MEAN...@@`: the mean number of hogs in the queue of each core.
 *
 * Hogs are bound to their start cores for some time, so that all have the load of threads that always run or wait when they
 * become free at once. Samples are field 39 of /proc/PID/stat, the core in whose queue a runnable thread is. The sampler is
 * a real-time thread on the last start core, so that hogs cannot starve it.
 */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HOGS = 64, CORES = 64, GROUPS = 8, NAME = 32 };

struct hog {
	pid_t pid;
	int stat;
	cpu_set_t allowed;
};

struct recipe {
	char name[NAME];
	int wanted;
	int hogs;
	struct hog hog[HOGS];
	int groups;
	char group[GROUPS][NAME];
	/* Directories of the groups, open. */
	int directory[GROUPS];
};

static void fail(const char *what, ...)
{
	va_list list;

	va_start(list, what);
	fprintf(stderr, "hogs: error: ");
	vfprintf(stderr, what, list);
	fprintf(stderr, "\n");
	va_end(list);
	exit(1);
}

static void pause_ms(long ms)
{
	struct timespec left = { ms / 1000, ms % 1000 * 1000000 };

	while (nanosleep(&left, &left) && errno == EINTR)
		;
}

static void write_text(const char *path, const char *text)
{
	int file = open(path, O_WRONLY);

	if (file < 0 || write(file, text, strlen(text)) < 0)
		fail("cannot write %s to %s: %s", text, path, strerror(errno));
	close(file);
}

static cpu_set_t cores_of(const char *list)
{
	cpu_set_t set;
	const char *at = list;

	CPU_ZERO(&set);
	while (*at) {
		char *end;
		long first = strtol(at, &end, 10), last = first;

		if (end == at)
			fail("no list of cores: %s", list);
		if (*end == '-')
			last = strtol(end + 1, &end, 10);
		for (; first <= last && first < CORES; first++)
			CPU_SET(first, &set);
		at = *end == ',' ? end + 1 : end;
	}
	return set;
}

/* The directory of NAME=WEIGHT, a cgroup that is made unless the recipe has it already. */
static int group_of(struct recipe *recipe, char *text)
{
	char path[128], *weight = strchr(text, '=');
	int at = 0;

	if (!weight)
		fail("no NAME=WEIGHT: %s", text);
	*weight++ = 0;
	for (; at < recipe->groups; at++)
		if (!strcmp(recipe->group[at], text))
			return recipe->directory[at];
	if (at == GROUPS)
		fail("more than %d cgroups in %s", GROUPS, recipe->name);
	snprintf(path, sizeof(path), "/sys/fs/cgroup/%s", text);
	if (mkdir(path, 0755))
		fail("cannot make %s: %s", path, strerror(errno));
	recipe->directory[at] = open(path, O_RDONLY | O_DIRECTORY);
	if (recipe->directory[at] < 0)
		fail("cannot open %s: %s", path, strerror(errno));
	snprintf(path, sizeof(path), "/sys/fs/cgroup/%s/cpu.weight", text);
	write_text(path, weight);
	snprintf(recipe->group[at], NAME, "%s", text);
	recipe->groups++;
	return recipe->directory[at];
}

/* A child in this cgroup, or in that of the parent for -1. */
static pid_t begin(int directory)
{
	struct clone_args args = { .exit_signal = SIGCHLD };
	pid_t pid;

	if (directory >= 0) {
		args.flags = CLONE_INTO_CGROUP;
		args.cgroup = (uint64_t)directory;
	}
	pid = (pid_t)syscall(SYS_clone3, &args, sizeof(args));
	if (pid)
		return pid;
	for (;;)
		__asm__ volatile("" ::: "memory");
}

static void set_nice(pid_t pid, const char *nice)
{
	struct sched_param none = { 0 };

	if (!strcmp(nice, "idle")) {
		if (sched_setscheduler(pid, SCHED_IDLE, &none))
			fail("SCHED_IDLE: %s", strerror(errno));
	} else if (setpriority(PRIO_PROCESS, (id_t)pid, atoi(nice))) {
		fail("nice %s: %s", nice, strerror(errno));
	}
}

static void add_hogs(struct recipe *recipe, char *line)
{
	int count, start, directory = -1;
	char nice[NAME], cgroup[NAME], cores[128], path[128];
	cpu_set_t allowed, one;

	if (sscanf(line, " hogs %d %31s %31s %127s %d", &count, nice, cgroup, cores, &start) != 5)
		fail("no line of hogs: %s", line);
	allowed = cores_of(cores);
	if (strcmp(cgroup, "-"))
		directory = group_of(recipe, cgroup);
	/* Children start where the parent is, and are bound as it is. */
	CPU_ZERO(&one);
	CPU_SET(start, &one);
	if (sched_setaffinity(0, sizeof(one), &one))
		fail("core %d: %s", start, strerror(errno));
	for (; count > 0; count--) {
		struct hog *hog = &recipe->hog[recipe->hogs++];

		if (recipe->hogs > HOGS)
			fail("more than %d hogs in %s", HOGS, recipe->name);
		hog->allowed = allowed;
		hog->pid = begin(directory);
		if (hog->pid < 0)
			fail("cannot start a hog: %s", strerror(errno));
		set_nice(hog->pid, nice);
		snprintf(path, sizeof(path), "/proc/%d/stat", hog->pid);
		hog->stat = open(path, O_RDONLY);
		if (hog->stat < 0)
			fail("cannot open %s: %s", path, strerror(errno));
	}
}

/* The core in whose queue a hog is: word 39 of /proc/PID/stat. Word 2 may have spaces, and ends with the last parenthesis. */
static long core_of(struct hog *hog)
{
	char text[1024], *at;
	ssize_t length = pread(hog->stat, text, sizeof(text) - 1, 0);
	long core;

	if (length <= 0)
		fail("hog %d is gone", hog->pid);
	text[length] = 0;
	at = strrchr(text, ')');
	for (int word = 2; at && word < 39; word++)
		at = strchr(at + 1, ' ');
	if (!at)
		fail("stat of hog %d is cut off", hog->pid);
	core = strtol(at + 1, NULL, 10);
	if (core < 0 || core >= CORES)
		fail("hog %d is on core %ld", hog->pid, core);
	return core;
}

/* Hogs may use all of their cores from now on. */
static void unbind(struct recipe *recipe)
{
	for (int at = 0; at < recipe->hogs; at++)
		if (sched_setaffinity(recipe->hog[at].pid, sizeof(cpu_set_t), &recipe->hog[at].allowed))
			fail("cores of hog %d: %s", recipe->hog[at].pid, strerror(errno));
}

static void end(struct recipe *recipe)
{
	char path[128];

	for (int at = 0; at < recipe->hogs; at++) {
		kill(recipe->hog[at].pid, SIGKILL);
		close(recipe->hog[at].stat);
	}
	while (wait(NULL) > 0)
		;
	for (int at = 0; at < recipe->groups; at++) {
		close(recipe->directory[at]);
		snprintf(path, sizeof(path), "/sys/fs/cgroup/%s", recipe->group[at]);
		while (rmdir(path) && errno == EBUSY)
			pause_ms(10);
	}
}

static void measure(struct recipe *recipe, long bound, long settle, long sample, long interval)
{
	long counts[CORES] = { 0 }, samples = 0;
	int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);

	pause_ms(bound);
	unbind(recipe);
	pause_ms(settle);
	for (; sample > 0; sample -= interval, samples++) {
		for (int at = 0; at < recipe->hogs; at++)
			counts[core_of(&recipe->hog[at])]++;
		pause_ms(interval);
	}
	printf("@@place %s", recipe->name);
	for (int core = 0; core < cores; core++)
		printf(" %.2f", (double)counts[core] / (double)samples);
	printf("@@\n");
	fflush(stdout);
	end(recipe);
}

int main(int argc, char **argv)
{
	struct sched_param first = { 50 };
	struct recipe recipe = { 0 };
	char line[256], machine[NAME];
	FILE *file;

	if (argc != 7) {
		fprintf(stderr, "usage: hogs RECIPES MACHINE BOUND_MS SETTLE_MS SAMPLE_MS INTERVAL_MS\n");
		return 64;
	}
	file = fopen(argv[1], "r");
	if (!file)
		fail("cannot read %s: %s", argv[1], strerror(errno));
	/* Hogs are fair from their start. */
	if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first))
		fail("SCHED_FIFO: %s", strerror(errno));
	for (;;) {
		int more = fgets(line, sizeof(line), file) != NULL;
		int begins = more && !strncmp(line, "recipe ", 7);

		if ((begins || !more) && recipe.wanted)
			measure(&recipe, atol(argv[3]), atol(argv[4]), atol(argv[5]), atol(argv[6]));
		if (!more)
			return 0;
		if (begins) {
			memset(&recipe, 0, sizeof(recipe));
			if (sscanf(line, "recipe %31s %31s", recipe.name, machine) != 2)
				fail("no name and machine: %s", line);
			recipe.wanted = !strcmp(machine, argv[2]);
		} else if (recipe.wanted && line[0] != '#' && line[0] != '\n') {
			add_hogs(&recipe, line);
		}
	}
}
