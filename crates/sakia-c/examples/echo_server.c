/* Sends back what clients send: `echo_server [CONNECTIONS]`. It prints its port, and ends after so many
 * connections, or never. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sakia.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define BATCH 64

struct connection {
    sakia_file *file;
    size_t sent, len; /* of the bytes to send back; nothing is sent while `len` is 0 */
    char bytes[16384];
};

static sakia_loop *loop;

static void fail(const char *what) {
    fprintf(stderr, "echo_server: %s: %s\n", what, sakia_last_error());
    exit(1);
}

static uint64_t submit(uint32_t op, sakia_file *file, void *buf, size_t len, uint64_t token) {
    sakia_request request;
    memset(&request, 0, sizeof request);
    request.op = op;
    request.file = file;
    request.buf = buf;
    request.len = len;
    request.token = token;
    if (sakia_loop_submit(loop, &request, 1, NULL, NULL) != 1) {
        fail("submit");
    }
    return request.ticket;
}

/* Sends the rest of what was received, or receives. The token is the connection's address. */
static void go_on(struct connection *it) {
    uint64_t token = (uint64_t)(uintptr_t)it;
    if (it->len > 0) {
        submit(SAKIA_OP_SEND, it->file, it->bytes + it->sent, it->len - it->sent, token);
    } else {
        submit(SAKIA_OP_RECEIVE, it->file, it->bytes, sizeof it->bytes, token);
    }
}

static int listen_on_loopback(void) {
    struct sockaddr_in address;
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, len) < 0 || listen(fd, 128) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &len) < 0) {
        perror("echo_server");
        exit(1);
    }
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

int main(int argc, char **argv) {
    sakia_loop_options options = SAKIA_LOOP_OPTIONS;
    sakia_file *listener;
    sakia_result results[BATCH];
    long most = argc > 1 ? atol(argv[1]) : -1, accepted = 0, open = 0;
    uint64_t accepts;
    int is_accepting = 1;
    if (sakia_loop_new(&options, &loop) < 0) {
        fail("no loop");
    }
    if (sakia_why_no_ring(loop) != NULL) {
        fprintf(stderr, "echo_server: without a ring: %s\n", sakia_why_no_ring(loop));
    }
    if (sakia_file_adopt(listen_on_loopback(), &listener) < 0) {
        fail("adopt");
    }
    accepts = submit(SAKIA_OP_ACCEPT_MANY, listener, NULL, 0, 0);
    while (is_accepting || open > 0) {
        int64_t count = sakia_loop_wait(loop, results, BATCH, -1);
        if (count < 0) {
            fail("wait");
        }
        for (int64_t i = 0; i < count; i++) {
            sakia_result *result = &results[i];
            struct connection *it = (struct connection *)(uintptr_t)result->token;
            if (it == NULL) { /* the accepts */
                if (result->file != NULL && (most < 0 || accepted < most)) {
                    it = (struct connection *)calloc(1, sizeof *it);
                    if (it == NULL) {
                        return 1;
                    }
                    it->file = result->file;
                    accepted++;
                    open++;
                    go_on(it);
                    if (accepted == most) {
                        sakia_loop_cancel(loop, accepts);
                    }
                } else {
                    sakia_file_unref(result->file); /* one too many */
                }
                if ((result->flags & SAKIA_MORE) == 0) {
                    is_accepting = accepted != most;
                    if (is_accepting) { /* the kernel ended it */
                        accepts = submit(SAKIA_OP_ACCEPT_MANY, listener, NULL, 0, 0);
                    }
                }
            } else if (result->value <= 0) { /* the end, or an error */
                sakia_file_unref(it->file);
                free(it);
                open--;
            } else if (it->len > 0) { /* sent */
                it->sent += (size_t)result->value;
                if (it->sent == it->len) {
                    it->sent = it->len = 0;
                }
                go_on(it);
            } else { /* received */
                it->len = (size_t)result->value;
                go_on(it);
            }
        }
    }
    sakia_file_unref(listener);
    if (sakia_loop_stop(loop, 1000000000, NULL, 0) != 0) {
        fail("stop");
    }
    sakia_loop_free(loop);
    return 0;
}
