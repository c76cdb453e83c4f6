/*
 * The programs of `limit.c` on libsakia. Variants of random reads: `loop`, `loop-batched`, and `queue`, whose results
 * the thread that submits takes. The echo is on a loop, with received bytes in its memory, and sends by requests;
 * `try` sends by calls that do not wait, as far as these can. `epoll` and `try-epoll` are the same without a ring.
 * An error ends the program.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sakia.h>
#include <stdio.h>
#include <string.h>

#include "job.h"

static _Noreturn void fail_sakia(const char *operation, int64_t value) {
    fprintf(stderr, "%s: %s (%s)\n", operation, strerror((int)-value), sakia_last_error());
    exit(1);
}

static sakia_loop *loop_new(uint64_t flags) {
    sakia_loop_options options = SAKIA_LOOP_OPTIONS;
    sakia_loop *loop;
    options.flags = flags;
    int error = sakia_loop_new(&options, &loop);
    if (error) {
        fail_sakia("loop", error);
    }
    return loop;
}

/* Submits all of them, and returns how many results are in `results`. */
static size_t submit(sakia_loop *loop, sakia_queue *queue, sakia_request *requests, size_t count,
                     sakia_result *results) {
    size_t done = 0;
    int64_t accepted = loop ? sakia_loop_submit(loop, requests, count, results, &done)
                            : sakia_queue_submit(queue, requests, count, results, &done);
    if (accepted != (int64_t)count) {
        fail_sakia("submit", accepted < 0 ? accepted : -EAGAIN);
    }
    return done;
}

static void reads(const struct job *job) {
    int is_batched = !strcmp(job->variant, "loop-batched");
    struct slot *slots = slots_new(job);
    uint64_t check = 0, total = job->tasks * (job->ops / job->tasks), done = 0;
    sakia_loop *loop = NULL;
    sakia_queue *queue = NULL;
    sakia_file *file;
    sakia_request *requests = calloc(job->tasks, sizeof *requests);
    sakia_result *results = calloc(job->tasks, sizeof *results);
    if (!strcmp(job->variant, "queue")) {
        sakia_queue_options options = SAKIA_QUEUE_OPTIONS;
        int error = sakia_queue_new(&options, &queue);
        if (error) {
            fail_sakia("queue", error);
        }
    } else {
        loop = loop_new(0);
    }
    if (!requests || !results || sakia_file_adopt(open_direct(job), &file)) {
        fail("file", ENOMEM);
    }
    section_begin();
    size_t count = job->tasks; /* requests to submit */
    for (uint64_t task = 0; task < job->tasks; task++) {
        requests[task].token = task;
    }
    while (done < total) {
        for (size_t i = 0; i < count; i++) {
            struct slot *slot = &slots[requests[i].token];
            requests[i].op = SAKIA_OP_READ;
            requests[i].file = file;
            requests[i].buf = slot->buffer;
            requests[i].len = job->block;
            requests[i].offset = slot_next(job, slot);
        }
        size_t taken = count > 0 ? submit(loop, queue, requests, count, results) : 0;
        count = 0;
        do {
            if (taken == 0) {
                int64_t waited = loop ? sakia_loop_wait(loop, results, job->tasks, -1)
                                      : sakia_queue_wait(queue, results, job->tasks, -1);
                if (waited < 0) {
                    fail_sakia("wait", waited);
                }
                taken = (size_t)waited;
            }
            for (size_t i = 0; i < taken; i++) {
                struct slot *slot = &slots[results[i].token];
                if (results[i].value != (int64_t)job->block) {
                    fail_sakia("read", results[i].value < 0 ? results[i].value : -EIO);
                }
                check += slot_check(job, slot);
                if (slot->left > 0) {
                    requests[count++].token = results[i].token;
                }
            }
            done += taken;
            taken = 0;
        } while (done < total && (count == 0 || (is_batched && count < job->tasks)));
    }
    section_end();
    section_report(total, check);
}

/* A piece of a connection's bytes that waits to be sent. */
struct piece {
    const uint8_t *bytes;
    uint64_t len, lent;
};

enum { PIECES = 1024 };

/* The first piece is being sent. */
struct connection {
    sakia_file *file;
    unsigned first, count;
    uint64_t sent;
    struct piece waiting[PIECES];
};

enum { ACCEPTED, RECEIVED, SENT };

static uint64_t named(int kind, uint64_t number) { return (uint64_t)kind << 32 | number; }

static sakia_request request_of(uint32_t op, sakia_file *file, uint64_t token) {
    sakia_request request;
    memset(&request, 0, sizeof request);
    request.op = op;
    request.file = file;
    request.token = token;
    return request;
}

static sakia_request send_first(struct connection *connection, uint64_t number) {
    struct piece *piece = &connection->waiting[connection->first % PIECES];
    sakia_request request = request_of(SAKIA_OP_SEND, connection->file, named(SENT, number));
    request.buf = (void *)(uintptr_t)(piece->bytes + connection->sent);
    request.len = piece->len - connection->sent;
    return request;
}

static void echo(const struct job *job) {
    static struct connection *connections[CONNECTIONS_MAX];
    static sakia_request requests[64];
    static sakia_result results[64];
    uint64_t known = 0;
    int tries = !strncmp(job->variant, "try", 3);
    sakia_file *listener;
    sakia_loop *loop = loop_new(strstr(job->variant, "epoll") ? SAKIA_NO_RING : 0);
    if (sakia_file_adopt(listen_for(job), &listener)) {
        fail("listener", EBADF);
    }
    requests[0] = request_of(SAKIA_OP_ACCEPT_MANY, listener, named(ACCEPTED, 0));
    size_t count = 1; /* requests to submit */
    for (;;) {
        if (count > 0) {
            int64_t accepted = sakia_loop_submit(loop, requests, count, NULL, NULL);
            if (accepted != (int64_t)count) {
                fail_sakia("submit", accepted);
            }
            count = 0;
        }
        int64_t taken = sakia_loop_wait(loop, results, 64, -1);
        if (taken < 0) {
            fail_sakia("wait", taken);
        }
        for (int64_t i = 0; i < taken; i++) {
            const sakia_result *result = &results[i];
            uint64_t number = (uint32_t)result->token;
            int kind = (int)(result->token >> 32);
            if (result->value < 0) {
                fail_sakia(kind == SENT ? "send" : kind == RECEIVED ? "receive" : "accept", result->value);
            }
            if (kind == ACCEPTED) {
                if (known == CONNECTIONS_MAX) {
                    fail("accept", ENOBUFS);
                }
                connections[known] = calloc(1, sizeof **connections);
                connections[known]->file = result->file;
                requests[count++] = request_of(SAKIA_OP_RECEIVE_MANY, result->file, named(RECEIVED, known));
                known++;
                continue;
            }
            struct connection *connection = connections[number];
            if (kind == RECEIVED) {
                int64_t sent = 0;
                if (tries && result->value > 0 && connection->count == 0) {
                    sent = sakia_try_send(connection->file, result->memory, (size_t)result->value, 0);
                    connection->sent = sent > 0 && sent < result->value ? (uint64_t)sent : 0;
                }
                if (result->value > 0 && sent == result->value) {
                    sakia_loop_give_back(loop, result->lent);
                } else if (result->value > 0) {
                    unsigned at = (connection->first + connection->count++) % PIECES;
                    connection->waiting[at] =
                        (struct piece){result->memory, (uint64_t)result->value, result->lent};
                    if (connection->count == 1) {
                        requests[count++] = send_first(connection, number);
                    }
                }
                continue;
            }
            struct piece *piece = &connection->waiting[connection->first % PIECES];
            connection->sent += (uint64_t)result->value;
            if (connection->sent == piece->len) {
                sakia_loop_give_back(loop, piece->lent);
                connection->sent = 0;
                connection->first++;
                connection->count--;
            }
            if (connection->count > 0) {
                requests[count++] = send_first(connection, number);
            }
        }
    }
}

int main(int argc, char **argv) {
    struct job job = job_parse(argc, argv);
    if (!strcmp(job.cell, "randread")) {
        reads(&job);
    } else {
        echo(&job);
    }
    return 0;
}
