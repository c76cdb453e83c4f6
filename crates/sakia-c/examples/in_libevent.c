/* The loop inside libevent's: each tick of a timer of libevent's writes a letter to a pipe, which is read
 * through the loop. Other events of the program are as they always are. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <event2/event.h>
#include <sakia.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TICKS 5

struct reader {
    sakia_loop *loop;
    sakia_file *file;
    int writer;
    int ticks, bytes;
    char byte;
};

static void fail(const char *what, const char *why) {
    fprintf(stderr, "in_libevent: %s: %s\n", what, why);
    exit(1);
}

static void submit_read(struct reader *reader) {
    sakia_request request;
    memset(&request, 0, sizeof request);
    request.op = SAKIA_OP_READ;
    request.file = reader->file;
    request.buf = &reader->byte;
    request.len = 1;
    request.offset = SAKIA_CURRENT_POSITION;
    if (sakia_loop_submit(reader->loop, &request, 1, NULL, NULL) != 1) {
        fail("submit", sakia_last_error());
    }
}

/* Submits, and takes all that is there. */
static void before_sleep(struct reader *reader) {
    sakia_result result;
    int64_t count;
    while ((count = sakia_loop_wait(reader->loop, &result, 1, 0)) > 0) {
        if (result.value != 1) {
            fail("read", strerror((int)-result.value));
        }
        printf("read %c\n", reader->byte);
        reader->bytes++;
        submit_read(reader);
    }
    if (count < 0) {
        fail("wait", sakia_last_error());
    }
}

/* It ends the sleep, and that is all: results are taken before the next one. */
static void on_news(evutil_socket_t fd, short events, void *unused) {
    (void)fd;
    (void)events;
    (void)unused;
}

static void on_tick(evutil_socket_t fd, short events, void *argument) {
    struct reader *reader = (struct reader *)argument;
    char letter = (char)('a' + reader->ticks);
    (void)fd;
    (void)events;
    if (reader->ticks < TICKS && write(reader->writer, &letter, 1) == 1) {
        reader->ticks++;
    }
}

int main(void) {
    sakia_loop_options options = SAKIA_LOOP_OPTIONS;
    struct reader reader;
    const struct timeval often = {0, 1000};
    struct event_base *base = event_base_new();
    struct event *news, *timer;
    int fds[2], pollable;
    memset(&reader, 0, sizeof reader);
    if (base == NULL || pipe(fds) < 0) {
        perror("in_libevent");
        return 1;
    }
    reader.writer = fds[1];
    if (sakia_loop_new(&options, &reader.loop) < 0 || sakia_file_adopt(fds[0], &reader.file) < 0) {
        fail("no loop", sakia_last_error());
    }
    pollable = sakia_loop_pollable(reader.loop);
    if (pollable < 0) {
        fail("pollable", sakia_last_error());
    }
    news = event_new(base, pollable, EV_READ | EV_PERSIST, on_news, NULL);
    timer = event_new(base, -1, EV_PERSIST, on_tick, &reader);
    if (news == NULL || timer == NULL || event_add(news, NULL) < 0 || event_add(timer, &often) < 0) {
        fail("events", "not added");
    }
    submit_read(&reader);
    /* One round of libevent's at a time, since it calls nothing of the program's before it sleeps. */
    for (before_sleep(&reader); reader.bytes < TICKS; before_sleep(&reader)) {
        if (event_base_loop(base, EVLOOP_ONCE) < 0) {
            fail("loop", "failed");
        }
    }
    /* The last read waits for ever: it is canceled. */
    if (sakia_loop_stop(reader.loop, 1000000000, NULL, 0) != 0) {
        fail("stop", sakia_last_error());
    }
    event_free(news);
    event_free(timer);
    event_base_free(base);
    sakia_file_unref(reader.file);
    sakia_loop_free(reader.loop);
    close(pollable);
    close(fds[1]);
    return 0;
}
