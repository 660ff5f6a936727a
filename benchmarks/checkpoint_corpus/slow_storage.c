/* Makes one folder as slow as network storage, for programs that run with this library in LD_PRELOAD.
 *
 * KOPT_SLOW_FOLDER names the folder, KOPT_SLOW_BYTES_PER_S the throughput, KOPT_SLOW_LATENCY_MS what opening for writing,
 * closing and renaming cost. Tiny models are written in microseconds otherwise, and no log line ever falls into a write.
 * With KOPT_SLOW_FULL_EVERY=5 there is no room for the rest of every fifth file a process opens to write; the file
 * KOPT_SLOW_FAILURES is told of it: seconds of the monotonic clock, and the path.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MOST_FILES 4096
enum { FAST, SLOW, DOOMED, FULL };
static char slow[MOST_FILES];
static atomic_int files_opened;

static void wait_seconds(double seconds) {
    struct timespec left = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left)) {}
}

static double setting(const char *name, double otherwise) {
    const char *text = getenv(name);
    return text ? atof(text) : otherwise;
}

static void be_late(void) { wait_seconds(setting("KOPT_SLOW_LATENCY_MS", 10) / 1e3); }

static void write_slowly(int file, ssize_t size) {
    if (file >= 0 && file < MOST_FILES && slow[file] && size > 0)
        wait_seconds(size / setting("KOPT_SLOW_BYTES_PER_S", 1e7));
}

static int path_of(int file, char *path, size_t room) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, room - 1);
    path[length > 0 ? length : 0] = 0;
    return length > 0;
}

static void tell_of_failure(int file) {
    char path[PATH_MAX];
    const char *told = getenv("KOPT_SLOW_FAILURES");
    FILE *to = told && path_of(file, path, sizeof path) ? fopen(told, "a") : NULL;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (to) {
        fprintf(to, "%.6f %s\n", now.tv_sec + now.tv_nsec / 1e9, path);
        fclose(to);
    }
}

/* How many of these bytes there is room for; -1 for none. A full disk takes a part first. */
static ssize_t room_for(int file, size_t size) {
    if (file < 0 || file >= MOST_FILES || slow[file] < DOOMED) return (ssize_t)size;
    if (slow[file] == DOOMED && size > 1) {
        slow[file] = FULL;
        return (ssize_t)(size / 2);
    }
    tell_of_failure(file);
    errno = ENOSPC;
    return -1;
}

/* Whether a file is in the folder is asked once, when it is opened. */
static int opened(int file, int flags) {
    char path[PATH_MAX];
    const char *folder = getenv("KOPT_SLOW_FOLDER");
    if (file < 0 || file >= MOST_FILES) return file;
    slow[file] = FAST;
    if (!folder || (flags & O_ACCMODE) == O_RDONLY) return file;
    if (path_of(file, path, sizeof path) && !strncmp(path, folder, strlen(folder)) && !(flags & O_DIRECTORY)) {
        int every = (int)setting("KOPT_SLOW_FULL_EVERY", 0);
        int doomed = every > 0 && atomic_fetch_add(&files_opened, 1) % every == every - 1;
        slow[file] = doomed ? DOOMED : SLOW;
        be_late();
    }
    return file;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define OPEN(next, flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    } \
    return opened(next, flags)

int open(const char *path, int flags, ...) { OPEN(NEXT(open)(path, flags, mode), flags); }
int open64(const char *path, int flags, ...) { OPEN(NEXT(open64)(path, flags, mode), flags); }
int openat(int at, const char *path, int flags, ...) { OPEN(NEXT(openat)(at, path, flags, mode), flags); }
int openat64(int at, const char *path, int flags, ...) { OPEN(NEXT(openat64)(at, path, flags, mode), flags); }

static FILE *streamed(FILE *stream) {
    if (stream) opened(fileno(stream), fcntl(fileno(stream), F_GETFL));
    return stream;
}
FILE *fopen(const char *path, const char *how) { return streamed(NEXT(fopen)(path, how)); }
FILE *fopen64(const char *path, const char *how) { return streamed(NEXT(fopen64)(path, how)); }

ssize_t write(int file, const void *from, size_t size) {
    ssize_t room = room_for(file, size);
    if (room < 0) return -1;
    size = (size_t)room;
    ssize_t done = NEXT(write)(file, from, size);
    write_slowly(file, done);
    return done;
}
ssize_t pwrite(int file, const void *from, size_t size, off_t at) {
    ssize_t room = room_for(file, size);
    if (room < 0) return -1;
    size = (size_t)room;
    ssize_t done = NEXT(pwrite)(file, from, size, at);
    write_slowly(file, done);
    return done;
}
ssize_t pwrite64(int file, const void *from, size_t size, off64_t at) {
    ssize_t room = room_for(file, size);
    if (room < 0) return -1;
    size = (size_t)room;
    ssize_t done = NEXT(pwrite64)(file, from, size, at);
    write_slowly(file, done);
    return done;
}
ssize_t writev(int file, const struct iovec *from, int parts) {
    if (room_for(file, 1) < 0) return -1;
    ssize_t done = NEXT(writev)(file, from, parts);
    write_slowly(file, done);
    return done;
}
ssize_t sendfile(int file, int from, off_t *at, size_t size) {
    ssize_t room = room_for(file, size);
    if (room < 0) return -1;
    ssize_t done = NEXT(sendfile)(file, from, at, (size_t)room);
    write_slowly(file, done);
    return done;
}
ssize_t sendfile64(int file, int from, off64_t *at, size_t size) {
    ssize_t room = room_for(file, size);
    if (room < 0) return -1;
    ssize_t done = NEXT(sendfile64)(file, from, at, (size_t)room);
    write_slowly(file, done);
    return done;
}
ssize_t copy_file_range(int from, off64_t *at, int file, off64_t *to, size_t size, unsigned flags) {
    ssize_t room = room_for(file, size);
    if (room < 0) return -1;
    ssize_t done = NEXT(copy_file_range)(from, at, file, to, (size_t)room, flags);
    write_slowly(file, done);
    return done;
}
size_t fwrite(const void *from, size_t size, size_t count, FILE *stream) {
    if (room_for(fileno(stream), 1) < 0) return 0;
    size_t done = NEXT(fwrite)(from, size, count, stream);
    write_slowly(fileno(stream), (ssize_t)(done * size));
    return done;
}
int close(int file) {
    int late = file >= 0 && file < MOST_FILES && slow[file];
    if (late) { slow[file] = FAST; be_late(); }
    return NEXT(close)(file);
}
int fclose(FILE *stream) {
    int file = stream ? fileno(stream) : -1;
    if (file >= 0 && file < MOST_FILES && slow[file]) { slow[file] = FAST; be_late(); }
    return NEXT(fclose)(stream);
}
