#define _GNU_SOURCE
#include "job.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

void fail(const char *operation, int error) {
    fprintf(stderr, "%s: %s\n", operation, strerror(error));
    exit(1);
}

struct job job_parse(int argc, char **argv) {
    struct job job = {.variant = "", .path = "", .block = 4096, .ops = 1, .tasks = 1, .congestion = "reno"};
    if (argc < 2) {
        fail("no cell", EINVAL);
    }
    job.cell = argv[1];
    for (int i = 2; i < argc; i++) {
        const char *value = strchr(argv[i], '=');
        if (!value) {
            fail(argv[i], EINVAL);
        }
        size_t key = (size_t)(value++ - argv[i]);
        uint64_t number = strtoull(value, NULL, 10);
        const struct {
            const char *name;
            const char **text;
            uint64_t *number;
        } fields[] = {
            {"variant", &job.variant, NULL}, {"path", &job.path, NULL},
            {"size", NULL, &job.size},       {"block", NULL, &job.block},
            {"ops", NULL, &job.ops},         {"tasks", NULL, &job.tasks},
            {"control", &job.control, NULL}, {"congestion", &job.congestion, NULL},
        };
        for (size_t field = 0; field < sizeof fields / sizeof *fields; field++) {
            if (strlen(fields[field].name) == key && !memcmp(fields[field].name, argv[i], key)) {
                if (fields[field].text) {
                    *fields[field].text = value;
                } else {
                    *fields[field].number = number;
                }
            }
        }
    }
    return job;
}

/* Counters that only grow. */
struct snapshot {
    uint64_t at, cpu, voluntary, involuntary, busy, steal;
};

static struct snapshot begin, end;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static uint64_t nanoseconds(struct timeval time) {
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_usec * 1000;
}

static void read_counters(struct snapshot *snapshot) {
    struct rusage usage;
    unsigned long long user, nice, system, idle, wait, irq, softirq, steal;
    FILE *stat = fopen("/proc/stat", "r");
    if (stat) {
        uint64_t tick = 1000000000 / (uint64_t)sysconf(_SC_CLK_TCK);
        if (fscanf(stat, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &wait, &irq,
                   &softirq, &steal) == 8) {
            snapshot->busy = (user + nice + system + irq + softirq) * tick;
            snapshot->steal = steal * tick;
        }
        fclose(stat);
    }
    getrusage(RUSAGE_SELF, &usage);
    snapshot->cpu = nanoseconds(usage.ru_utime) + nanoseconds(usage.ru_stime);
    snapshot->voluntary = (uint64_t)usage.ru_nvcsw;
    snapshot->involuntary = (uint64_t)usage.ru_nivcsw;
}

void section_begin(void) {
    read_counters(&begin);
    begin.at = now();
}

void section_end(void) {
    end.at = now();
    read_counters(&end);
}

void section_report(uint64_t ops, uint64_t check) {
    uint64_t cpu = end.cpu - begin.cpu, busy = end.busy - begin.busy;
    printf("{\"ops\":%llu,\"check\":%llu,\"wall_ns\":%llu,\"cpu_ns\":%llu,\"voluntary_switches\":%llu,"
           "\"involuntary_switches\":%llu,\"foreign_ns\":%llu,\"steal_ns\":%llu}\n",
           (unsigned long long)ops, (unsigned long long)check, (unsigned long long)(end.at - begin.at),
           (unsigned long long)cpu, (unsigned long long)(end.voluntary - begin.voluntary),
           (unsigned long long)(end.involuntary - begin.involuntary),
           (unsigned long long)(busy > cpu ? busy - cpu : 0), (unsigned long long)(end.steal - begin.steal));
    fflush(stdout);
}

static uint64_t mix(uint64_t number) {
    uint64_t z = number + 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
}

struct slot *slots_new(const struct job *job) {
    struct slot *slots = calloc(job->tasks, sizeof *slots);
    for (uint64_t task = 0; slots && task < job->tasks; task++) {
        slots[task].state = mix(task + 1);
        slots[task].left = job->ops / job->tasks;
        slots[task].buffer = aligned_alloc(4096, job->block);
        if (!slots[task].buffer) {
            fail("memory", ENOMEM);
        }
        memset(slots[task].buffer, 0, job->block);
    }
    return slots;
}

uint64_t slot_next(const struct job *job, struct slot *slot) {
    slot->state = mix(slot->state);
    slot->left--;
    return (uint64_t)(((unsigned __int128)slot->state * (job->size / job->block)) >> 64) * job->block;
}

uint64_t slot_check(const struct job *job, const struct slot *slot) {
    uint64_t first, last;
    memcpy(&first, slot->buffer, 8);
    memcpy(&last, slot->buffer + job->block - 8, 8);
    return first + last;
}

int open_direct(const struct job *job) {
    int fd = open(job->path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0) {
        fail(job->path, errno);
    }
    return fd;
}

/* The connection to the load, and the job's operations. */
static int control;
static uint64_t control_ops;

static void *oversee(void *nothing) {
    char word;
    (void)nothing;
    for (int message = 0; message < 2; message++) {
        if (read(control, &word, 1) != 1) {
            fail("load", errno);
        }
        if (message == 0) {
            section_begin();
        } else {
            section_end();
        }
        if (write(control, &word, 1) != 1) {
            fail("load", errno);
        }
    }
    section_report(control_ops, 0);
    exit(0);
}

int listen_for(const struct job *job) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    pthread_t thread;
    const char *colon = job->control ? strrchr(job->control, ':') : NULL;
    char host[64] = "";
    int on = 1;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!colon || (size_t)(colon - job->control) >= sizeof host) {
        fail("control: to be run by its load", EINVAL);
    }
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, len) || listen(listener, 4096) ||
        setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) ||
        setsockopt(listener, IPPROTO_TCP, TCP_CONGESTION, job->congestion, (socklen_t)strlen(job->congestion)) ||
        getsockname(listener, (struct sockaddr *)&address, &len)) {
        fail("listen", errno);
    }
    uint16_t port = address.sin_port; /* in the network's order */
    memcpy(host, job->control, (size_t)(colon - job->control));
    address.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    inet_pton(AF_INET, host, &address.sin_addr);
    control = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    control_ops = job->ops;
    if (control < 0 || connect(control, (struct sockaddr *)&address, sizeof address) ||
        write(control, &port, 2) != 2) {
        fail("control", errno);
    }
    if (pthread_create(&thread, NULL, oversee, NULL)) {
        fail("thread", errno);
    }
    return listener;
}
