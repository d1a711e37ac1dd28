/*
 * A service that hints: it serves a request for as long as a file exists, and sleeps otherwise. Its page is the first
 * argument, or what Quell tells it; the file the second, or /tmp/request.
 */
#include "quell_hints.h"

#include <stdio.h>

static const char *request = "/tmp/request";

static int wanted(void)
{
	return access(request, F_OK) == 0;
}

int main(int argc, char **argv)
{
	struct quell_hints hints;
	struct quell_hints_slot *slot;
	const struct timespec nap = {0, 100 * 1000 * 1000};

	if (argc > 2)
		request = argv[2];
	if (quell_hints_open(&hints, argc > 1 && argv[1][0] ? argv[1] : NULL, 8) < 0) {
		perror("hints");
		return 1;
	}
	slot = quell_hints_register(&hints);
	for (;;) {
		while (!wanted())
			nanosleep(&nap, NULL);
		quell_hints_begin(slot);
		while (wanted())
			for (volatile int turn = 0; turn < 1000000; turn++)
				;
		quell_hints_end(slot);
	}
}
