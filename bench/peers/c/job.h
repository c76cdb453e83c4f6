/*
 * The jobs of `cargo xtask peers`, for programs in C: the arguments, the measured section, and its line of JSON. They
 * are those of the crate `peers-common`.
 */
#ifndef PEERS_JOB_H
#define PEERS_JOB_H

#include <stdint.h>
#include <stdlib.h>

/* The arguments. */
struct job {
    const char *cell;    /* "randread" or "echo" */
    const char *variant; /* of the program; empty for the default one */
    const char *path;    /* the file */
    uint64_t size;       /* its bytes that are used */
    uint64_t block;      /* the bytes of a read */
    uint64_t ops;        /* operations of all tasks together */
    uint64_t tasks;      /* operations that are under way */
    const char *congestion;
    const char *control; /* the address at which the load waits for a server */
};

/* Parses the arguments. Those that no program here needs are ignored. */
struct job job_parse(int argc, char **argv);

/* Ends the program with a reason. */
_Noreturn void fail(const char *operation, int error);

/* Begins and ends the measured section. */
void section_begin(void);
void section_end(void);
/* Prints the measurements. */
void section_report(uint64_t ops, uint64_t check);

/* A random read that is under way, or was answered. */
struct slot {
    uint64_t state; /* of the offsets of its task */
    uint64_t left;  /* reads of its task */
    uint8_t *buffer;
};

/* Returns one slot for each task, with memory of its own. */
struct slot *slots_new(const struct job *job);
/* Returns the next offset. */
uint64_t slot_next(const struct job *job, struct slot *slot);
/* Returns the check of a block that was read. */
uint64_t slot_check(const struct job *job, const struct slot *slot);

/* Opens the job's file past the page cache. */
int open_direct(const struct job *job);

/*
 * Returns a listener, and lets the load in by a thread that sleeps while the server is measured, and ends the
 * process with the load.
 */
int listen_for(const struct job *job);

/* Bytes that a server receives at once, at most. */
enum { RECEIVE_BYTES = 16 << 10 };
/* More connections than any load has. */
enum { CONNECTIONS_MAX = 1024 };

#endif
