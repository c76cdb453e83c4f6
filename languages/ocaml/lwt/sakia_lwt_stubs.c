/* An epoll set for an engine's watchers, and the clock of its timers. */

#define _GNU_SOURCE
#define CAML_NAME_SPACE
#include <caml/bigarray.h>
#include <caml/memory.h>
#include <caml/mlvalues.h>
#include <caml/signals.h>

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>

value sakia_lwt_epoll_create(value unit) {
    int fd = epoll_create1(EPOLL_CLOEXEC);
    return Val_int(fd < 0 ? -errno : fd);
}

/* `data` comes back with the events. */
value sakia_lwt_epoll_control(value set, value operation, value fd, value events, value data) {
    static const int operations[] = {EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL};
    struct epoll_event event;
    memset(&event, 0, sizeof event);
    event.events = (Int_val(events) & 1 ? EPOLLIN : 0) | (Int_val(events) & 2 ? EPOLLOUT : 0);
    event.data.u64 = (uint64_t)Long_val(data);
    return Val_int(epoll_ctl(Int_val(set), operations[Int_val(operation)], Int_val(fd), &event) < 0 ? -errno
                                                                                                    : 0);
}

/* Stores pairs of 64-bit numbers: events, 1 for reading and 2 for writing, and the data. */
static intnat wait(int set, uint64_t *pairs, int room, int timeout) {
    struct epoll_event events[256];
    int count = epoll_wait(set, events, room > 256 ? 256 : room, timeout);
    for (int i = 0; i < count; i++) {
        uint32_t found = events[i].events;
        pairs[2 * i] = (found & (EPOLLIN | EPOLLERR | EPOLLHUP) ? 1 : 0) |
                       (found & (EPOLLOUT | EPOLLERR | EPOLLHUP) ? 2 : 0);
        pairs[2 * i + 1] = events[i].data.u64;
    }
    return count < 0 ? -errno : count;
}

intnat sakia_lwt_epoll_look(intnat set, value pairs, intnat room) {
    return wait((int)set, Caml_ba_data_val(pairs), (int)room, 0);
}

value sakia_lwt_epoll_look_byte(value set, value pairs, value room) {
    return Val_long(sakia_lwt_epoll_look(Long_val(set), pairs, Long_val(room)));
}

value sakia_lwt_epoll_wait(value set_v, value pairs_v, value room_v, value timeout_v) {
    CAMLparam1(pairs_v);
    int set = Int_val(set_v), room = Int_val(room_v), timeout = Int_val(timeout_v);
    uint64_t *pairs = Caml_ba_data_val(pairs_v);
    intnat count;
    caml_enter_blocking_section();
    count = wait(set, pairs, room, timeout);
    caml_leave_blocking_section();
    CAMLreturn(Val_long(count));
}

intnat sakia_lwt_now(value unit) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (intnat)now.tv_sec * 1000000000 + now.tv_nsec;
}

value sakia_lwt_now_byte(value unit) { return Val_long(sakia_lwt_now(unit)); }
