/* Sums the bytes of files by four threads that share a queue: `queue_sum FILE...`. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sakia.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 4
#define BLOCK 65536

/* A file to sum, by whichever thread gets the result of its last request. */
struct job {
    const char *path;
    sakia_file *file;
    unsigned char *memory;
    uint64_t offset, sum;
};

static sakia_queue *queue;
static struct job *jobs;
static uint64_t jobs_left;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "queue_sum: %s: %s\n", what, why);
    exit(1);
}

/* Submits a request, and handles its result if it is there at once. */
static void submit(sakia_request *request, sakia_result *result, size_t *done) {
    if (sakia_queue_submit(queue, request, 1, result, done) != 1) {
        fail("submit", sakia_last_error());
    }
}

static void open_job(struct job *job, uint64_t token, sakia_result *result, size_t *done) {
    sakia_request request;
    memset(&request, 0, sizeof request);
    request.op = SAKIA_OP_OPEN;
    request.path = job->path;
    request.flags = O_RDONLY;
    request.token = token;
    submit(&request, result, done);
}

/* Handles a result, and those of the reads that follow it at once. */
static void go_on(sakia_result result) {
    size_t done = 1;
    while (done == 1) {
        struct job *job = &jobs[result.token];
        if (result.value < 0) {
            fail(job->path, strerror((int)-result.value));
        }
        if (job->file == NULL) {
            job->file = result.file;
        } else if (result.value == 0) { /* the end of the file */
            sakia_file_unref(job->file);
            pthread_mutex_lock(&lock);
            int is_last = --jobs_left == 0;
            pthread_mutex_unlock(&lock);
            if (is_last && sakia_queue_stop(queue, -1, NULL, 0) != 0) {
                fail("stop", sakia_last_error());
            }
            return;
        } else {
            for (int64_t i = 0; i < result.value; i++) {
                job->sum += job->memory[i];
            }
            job->offset += (uint64_t)result.value;
        }
        sakia_request request;
        memset(&request, 0, sizeof request);
        request.op = SAKIA_OP_READ;
        request.file = job->file;
        request.buf = job->memory;
        request.len = BLOCK;
        request.offset = job->offset;
        request.token = result.token;
        submit(&request, &result, &done);
    }
}

static void *reaper(void *unused) {
    for (;;) {
        sakia_result result;
        pthread_mutex_lock(&lock);
        int is_over = jobs_left == 0;
        pthread_mutex_unlock(&lock);
        if (is_over) {
            return unused;
        }
        int64_t count = sakia_queue_wait(queue, &result, 1, 10000000);
        if (count < 0) {
            fail("wait", sakia_last_error());
        }
        if (count == 1) {
            go_on(result);
        }
    }
}

int main(int argc, char **argv) {
    sakia_queue_options options = SAKIA_QUEUE_OPTIONS;
    pthread_t threads[THREADS];
    if (argc < 2) {
        return 0;
    }
    if (sakia_queue_new(&options, &queue) < 0) {
        fail("no queue", sakia_last_error());
    }
    jobs_left = (uint64_t)argc - 1;
    jobs = (struct job *)calloc((size_t)argc, sizeof *jobs);
    for (uint64_t i = 0; i < (uint64_t)argc - 1 && jobs != NULL; i++) {
        jobs[i].path = argv[i + 1];
        jobs[i].memory = (unsigned char *)malloc(BLOCK);
        if (jobs[i].memory == NULL) {
            return 1;
        }
    }
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], NULL, reaper, NULL) != 0) {
            return 1;
        }
    }
    for (uint64_t i = 0; i < (uint64_t)argc - 1; i++) {
        sakia_result result;
        size_t done;
        open_job(&jobs[i], i, &result, &done);
        if (done == 1) {
            go_on(result);
        }
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    for (int i = 0; i < argc - 1; i++) {
        printf("%" PRIu64 " %s\n", jobs[i].sum, jobs[i].path);
        free(jobs[i].memory);
    }
    free(jobs);
    return sakia_queue_free(queue) < 0;
}
