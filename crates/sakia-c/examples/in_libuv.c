/* The loop inside libuv's: each tick of a timer of libuv's writes a letter to a pipe, which is read
 * through the loop. Other handles of the program are as they always are. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sakia.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#define TICKS 5

struct reader {
    sakia_loop *loop;
    sakia_file *file;
    int writer;
    int ticks, bytes;
    char byte;
    uv_prepare_t before_sleep;
    uv_poll_t news;
    uv_timer_t timer;
};

static void fail(const char *what, const char *why) {
    fprintf(stderr, "in_libuv: %s: %s\n", what, why);
    exit(1);
}

static void check(const char *what, int status) {
    if (status < 0) {
        fail(what, uv_strerror(status));
    }
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

static void end(struct reader *reader) {
    uv_close((uv_handle_t *)&reader->before_sleep, NULL);
    uv_close((uv_handle_t *)&reader->news, NULL);
    uv_close((uv_handle_t *)&reader->timer, NULL);
}

/* Before each sleep of libuv's, after all callbacks: submits, and takes all that is there. */
static void on_before_sleep(uv_prepare_t *handle) {
    struct reader *reader = (struct reader *)handle->data;
    sakia_result result;
    int64_t count;
    while ((count = sakia_loop_wait(reader->loop, &result, 1, 0)) > 0) {
        if (result.value != 1) {
            fail("read", strerror((int)-result.value));
        }
        printf("read %c\n", reader->byte);
        submit_read(reader);
        if (++reader->bytes == TICKS) {
            end(reader);
            return;
        }
    }
    if (count < 0) {
        fail("wait", sakia_last_error());
    }
}

/* It ends the sleep, and that is all: results are taken before the next one. */
static void on_news(uv_poll_t *handle, int status, int events) {
    (void)handle;
    (void)events;
    check("poll", status);
}

static void on_tick(uv_timer_t *handle) {
    struct reader *reader = (struct reader *)handle->data;
    char letter = (char)('a' + reader->ticks);
    if (reader->ticks < TICKS && write(reader->writer, &letter, 1) == 1) {
        reader->ticks++;
    }
}

int main(void) {
    sakia_loop_options options = SAKIA_LOOP_OPTIONS;
    struct reader reader;
    uv_loop_t *uv = uv_default_loop();
    int fds[2], pollable;
    memset(&reader, 0, sizeof reader);
    if (pipe(fds) < 0) {
        perror("in_libuv");
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
    check("prepare", uv_prepare_init(uv, &reader.before_sleep));
    check("poll", uv_poll_init(uv, &reader.news, pollable));
    check("timer", uv_timer_init(uv, &reader.timer));
    reader.before_sleep.data = reader.timer.data = &reader;
    check("prepare", uv_prepare_start(&reader.before_sleep, on_before_sleep));
    check("poll", uv_poll_start(&reader.news, UV_READABLE, on_news));
    check("timer", uv_timer_start(&reader.timer, on_tick, 1, 1));
    submit_read(&reader);
    check("run", uv_run(uv, UV_RUN_DEFAULT));
    check("close", uv_loop_close(uv));
    /* The last read waits for ever: it is canceled. */
    if (sakia_loop_stop(reader.loop, 1000000000, NULL, 0) != 0) {
        fail("stop", sakia_last_error());
    }
    sakia_file_unref(reader.file);
    sakia_loop_free(reader.loop);
    close(pollable);
    close(fds[1]);
    return 0;
}
