/* The loop inside an event loop of another kind: plain epoll, with a timer of its own. Each tick of the timer
 * reads the next line of the example's input, a pipe, through the loop. */
#include <sakia.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define TICKS 5

static void fail(const char *what) {
    fprintf(stderr, "in_epoll: %s: %s\n", what, sakia_last_error());
    exit(1);
}

static void watch(int epoll, int fd) {
    struct epoll_event event;
    memset(&event, 0, sizeof event);
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0) {
        perror("in_epoll");
        exit(1);
    }
}

static void submit_read(sakia_loop *loop, sakia_file *file, char *byte) {
    sakia_request request;
    memset(&request, 0, sizeof request);
    request.op = SAKIA_OP_READ;
    request.file = file;
    request.buf = byte;
    request.len = 1;
    request.offset = SAKIA_CURRENT_POSITION;
    if (sakia_loop_submit(loop, &request, 1, NULL, NULL) != 1) {
        fail("submit");
    }
}

int main(void) {
    sakia_loop_options options = SAKIA_LOOP_OPTIONS;
    sakia_loop *loop;
    sakia_file *reader;
    struct itimerspec often;
    char byte = 0;
    int fds[2], ticks = 0, bytes = 0;
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    int pollable;
    memset(&often, 0, sizeof often);
    often.it_value.tv_nsec = often.it_interval.tv_nsec = 1000000;
    if (epoll < 0 || timer < 0 || pipe(fds) < 0 || timerfd_settime(timer, 0, &often, NULL) < 0) {
        perror("in_epoll");
        return 1;
    }
    if (sakia_loop_new(&options, &loop) < 0 || sakia_file_adopt(fds[0], &reader) < 0) {
        fail("no loop");
    }
    pollable = sakia_loop_pollable(loop);
    if (pollable < 0) {
        fail("pollable");
    }
    watch(epoll, timer);
    watch(epoll, pollable);
    submit_read(loop, reader, &byte);
    while (bytes < TICKS) {
        struct epoll_event event;
        sakia_result result;
        int64_t count;
        /* Before each sleep: submits, and takes all that is there. */
        while ((count = sakia_loop_wait(loop, &result, 1, 0)) > 0) {
            if (result.value != 1) {
                fprintf(stderr, "in_epoll: read: %s\n", strerror((int)-result.value));
                return 1;
            }
            printf("read %c\n", byte);
            bytes++;
            submit_read(loop, reader, &byte);
        }
        if (count < 0) {
            fail("wait");
        }
        if (bytes == TICKS || epoll_wait(epoll, &event, 1, -1) < 1) {
            continue;
        }
        if (event.data.fd == timer) {
            uint64_t expired;
            char letter = (char)('a' + ticks);
            if (read(timer, &expired, sizeof expired) == sizeof expired && ticks < TICKS) {
                ticks++;
                if (write(fds[1], &letter, 1) != 1) {
                    return 1;
                }
            }
        }
    }
    /* The last read waits for ever: it is canceled. */
    if (sakia_loop_stop(loop, 1000000000, NULL, 0) != 0) {
        fail("stop");
    }
    sakia_file_unref(reader);
    sakia_loop_free(loop);
    close(pollable);
    close(timer);
    close(epoll);
    close(fds[1]);
    return 0;
}
