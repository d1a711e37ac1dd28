/*
 * A member of a lane that notes its turns: noting FILE NUMBER sleeps until FILE.go exists, then keeps its core busy and
 * appends its number to the file's list whenever it runs and another member of the same file ran last. On one core only
 * one of them runs at a time, so the list is the order of their turns; a member that is stopped between its look and its
 * note leaves out a turn. noting FILE prints the list.
 */
#define _POSIX_C_SOURCE 200809L

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { LENGTH = 1 << 16 };

struct list {
	/* The number of the member that noted last, plus one. */
	_Atomic unsigned int last;
	_Atomic unsigned int length;
	_Atomic unsigned char order[LENGTH];
};

static void note(struct list *list, unsigned int number)
{
	for (;;) {
		unsigned int at;

		if (atomic_load(&list->last) == number + 1)
			continue;
		atomic_store(&list->last, number + 1);
		at = atomic_fetch_add(&list->length, 1);
		/* It has noted enough, and goes on without. */
		while (at >= LENGTH)
			;
		atomic_store(&list->order[at], (unsigned char)('A' + number));
	}
}

int main(int argc, char **argv)
{
	struct list *list;
	int file;

	if (argc < 2 || argc > 3) {
		fprintf(stderr, "noting FILE [NUMBER]\n");
		return 64;
	}
	file = open(argv[1], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (file < 0 || ftruncate(file, sizeof(*list)) < 0) {
		perror(argv[1]);
		return 1;
	}
	list = mmap(NULL, sizeof(*list), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (list == MAP_FAILED) {
		perror(argv[1]);
		return 1;
	}
	if (argc > 2) {
		char go[256];

		snprintf(go, sizeof(go), "%s.go", argv[1]);
		while (access(go, F_OK) != 0)
			nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
		note(list, (unsigned int)atoi(argv[2]));
	}
	for (unsigned int at = 0; at < atomic_load(&list->length) && at < LENGTH; at++)
		putchar(atomic_load(&list->order[at]));
	putchar('\n');
	return 0;
}
