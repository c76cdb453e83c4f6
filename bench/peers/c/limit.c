/*
 * The least that a program in C can do: on a ring by liburing, and on epoll. Variants of random reads: `sliding`, in
 * which each read that ends starts the next one of its task, and `batched`, in which all end before the next ones
 * start. Variants of the echo: `multishot`, with one receive for each connection into buffers that the kernel
 * takes, and `epoll`. An error ends the program.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <liburing.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "job.h"

enum { ENTRIES = 1024 };

static struct io_uring ring;

static void ring_new(void) {
    unsigned flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    int error = io_uring_queue_init(ENTRIES, &ring, flags);
    if (error) {
        fail("io_uring", -error);
    }
}

static struct io_uring_sqe *entry(void) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    if (!sqe) {
        io_uring_submit(&ring);
        sqe = io_uring_get_sqe(&ring);
    }
    return sqe;
}

static void wait_for(unsigned count) {
    int error = io_uring_submit_and_wait(&ring, count);
    if (error < 0 && error != -EINTR) {
        fail("io_uring_enter", -error);
    }
}

static void reads(const struct job *job) {
    int is_batched = !strcmp(job->variant, "batched");
    struct slot *slots = slots_new(job);
    uint64_t check = 0, total = job->tasks * (job->ops / job->tasks), done = 0;
    int fd = open_direct(job);
    ring_new();
    if (io_uring_register_files(&ring, &fd, 1)) {
        fail("register files", errno);
    }
    section_begin();
    for (uint64_t task = 0; task < job->tasks; task++) {
        struct io_uring_sqe *sqe = entry();
        io_uring_prep_read(sqe, 0, slots[task].buffer, (unsigned)job->block, slot_next(job, &slots[task]));
        sqe->flags |= IOSQE_FIXED_FILE;
        io_uring_sqe_set_data64(sqe, task);
    }
    while (done < total) {
        struct io_uring_cqe *cqe;
        unsigned head, count = 0;
        wait_for(is_batched ? (unsigned)job->tasks : 1);
        io_uring_for_each_cqe(&ring, head, cqe) {
            struct slot *slot = &slots[cqe->user_data];
            if (cqe->res != (int)job->block) {
                fail("read", cqe->res < 0 ? -cqe->res : EIO);
            }
            check += slot_check(job, slot);
            if (slot->left > 0) {
                struct io_uring_sqe *sqe = entry();
                io_uring_prep_read(sqe, 0, slot->buffer, (unsigned)job->block, slot_next(job, slot));
                sqe->flags |= IOSQE_FIXED_FILE;
                io_uring_sqe_set_data64(sqe, cqe->user_data);
            }
            count++;
        }
        io_uring_cq_advance(&ring, count);
        done += count;
    }
    section_end();
    section_report(total, check);
}

/* The buffers that the kernel takes for received bytes. */
enum { BUFFERS = 1024, GROUP = 0 };
static struct io_uring_buf_ring *buffers;
static uint8_t *memory;

static void buffers_new(void) {
    struct io_uring_buf_reg reg = {.ring_entries = BUFFERS, .bgid = GROUP};
    buffers = aligned_alloc(4096, BUFFERS * sizeof(struct io_uring_buf));
    memory = aligned_alloc(4096, (size_t)BUFFERS * RECEIVE_BYTES);
    if (!buffers || !memory) {
        fail("memory", ENOMEM);
    }
    reg.ring_addr = (uint64_t)(uintptr_t)buffers;
    int error = io_uring_register_buf_ring(&ring, &reg, 0);
    if (error) {
        fail("register buffers", -error);
    }
    io_uring_buf_ring_init(buffers);
    for (int number = 0; number < BUFFERS; number++) {
        io_uring_buf_ring_add(buffers, memory + (size_t)number * RECEIVE_BYTES, RECEIVE_BYTES,
                              (unsigned short)number, io_uring_buf_ring_mask(BUFFERS), number);
    }
    io_uring_buf_ring_advance(buffers, BUFFERS);
}

/* Received bytes of a connection that wait to be sent, oldest first; the first ones are being sent. */
struct connection {
    int fd;
    unsigned first, count, sent;
    struct {
        unsigned buffer, len;
    } waiting[BUFFERS];
};

enum { ACCEPTED, RECEIVED, SENT };

static uint64_t named(int kind, uint64_t number) { return (uint64_t)kind << 32 | number; }

static void receive(struct connection *connection, uint64_t number) {
    struct io_uring_sqe *sqe = entry();
    io_uring_prep_recv_multishot(sqe, connection->fd, NULL, 0, 0);
    sqe->flags |= IOSQE_BUFFER_SELECT;
    sqe->buf_group = GROUP;
    io_uring_sqe_set_data64(sqe, named(RECEIVED, number));
}

static void send_first(struct connection *connection, uint64_t number) {
    unsigned at = connection->first % BUFFERS;
    uint8_t *bytes = memory + (size_t)connection->waiting[at].buffer * RECEIVE_BYTES;
    struct io_uring_sqe *sqe = entry();
    io_uring_prep_send(sqe, connection->fd, bytes + connection->sent,
                       connection->waiting[at].len - connection->sent, MSG_NOSIGNAL | MSG_WAITALL);
    io_uring_sqe_set_data64(sqe, named(SENT, number));
}

static void echo_multishot(int listener) {
    static struct connection *connections[CONNECTIONS_MAX];
    uint64_t count = 0;
    ring_new();
    buffers_new();
    struct io_uring_sqe *accept = entry();
    io_uring_prep_multishot_accept(accept, listener, NULL, NULL, 0);
    io_uring_sqe_set_data64(accept, named(ACCEPTED, 0));
    for (;;) {
        struct io_uring_cqe *cqe;
        unsigned head, seen = 0;
        int given = 0;
        wait_for(1);
        io_uring_for_each_cqe(&ring, head, cqe) {
            uint64_t number = (uint32_t)cqe->user_data;
            int kind = (int)(cqe->user_data >> 32), value = cqe->res;
            seen++;
            if (kind == ACCEPTED) {
                if (value < 0 || count == CONNECTIONS_MAX) {
                    fail("accept", value < 0 ? -value : ENOBUFS);
                }
                connections[count] = calloc(1, sizeof **connections);
                connections[count]->fd = value;
                receive(connections[count], count);
                count++;
                continue;
            }
            struct connection *connection = connections[number];
            if (value < 0 && value != -ENOBUFS) {
                fail(kind == SENT ? "send" : "receive", -value);
            }
            if (kind == RECEIVED) {
                if (value > 0) {
                    unsigned at = (connection->first + connection->count++) % BUFFERS;
                    connection->waiting[at].buffer = cqe->flags >> IORING_CQE_BUFFER_SHIFT;
                    connection->waiting[at].len = (unsigned)value;
                    if (connection->count == 1) {
                        send_first(connection, number);
                    }
                }
                if (value != 0 && !(cqe->flags & IORING_CQE_F_MORE)) {
                    receive(connection, number);
                }
                continue;
            }
            unsigned at = connection->first % BUFFERS;
            connection->sent += (unsigned)value;
            if (connection->sent == connection->waiting[at].len) {
                unsigned buffer = connection->waiting[at].buffer;
                io_uring_buf_ring_add(buffers, memory + (size_t)buffer * RECEIVE_BYTES, RECEIVE_BYTES,
                                      (unsigned short)buffer, io_uring_buf_ring_mask(BUFFERS), given++);
                connection->sent = 0;
                connection->first++;
                connection->count--;
            }
            if (connection->count > 0) {
                send_first(connection, number);
            }
        }
        io_uring_cq_advance(&ring, seen);
        io_uring_buf_ring_advance(buffers, given);
    }
}

static void echo_epoll(int listener) {
    static uint8_t bytes[RECEIVE_BYTES];
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[64];
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event)) {
        fail("epoll", errno);
    }
    for (;;) {
        int ready = epoll_wait(epoll, events, 64, -1);
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                event.data.fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
                if (event.data.fd < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, event.data.fd, &event)) {
                    fail("accept", errno);
                }
                continue;
            }
            ssize_t len = recv(fd, bytes, sizeof bytes, 0);
            if (len == 0) {
                close(fd);
                continue;
            }
            /* The loads that this is for fit into the sockets' buffers. */
            if (len < 0 || send(fd, bytes, (size_t)len, MSG_NOSIGNAL) != len) {
                fail("echo", errno);
            }
        }
    }
}

int main(int argc, char **argv) {
    struct job job = job_parse(argc, argv);
    if (!strcmp(job.cell, "randread")) {
        reads(&job);
    } else if (!strcmp(job.variant, "epoll")) {
        echo_epoll(listen_for(&job));
    } else {
        echo_multishot(listen_for(&job));
    }
    return 0;
}
