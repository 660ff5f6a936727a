/* libnvidia-ml.so.1 of an H100 node without GPUs: the calls that partition them, with NVML's own return codes.
 *
 * What there is lies in the file that NVML_STANDIN_STATE names, mapped into every process that loads this, so that it
 * survives each of them; devices.py has the same layout. A call that changes something is counted, and may be told to
 * fail, to lie, or to kill its process before or after it. */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OK, UNINITIALIZED, INVALID, UNSUPPORTED, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10, LOST = 15, IN_USE = 19, NO_ROOM = 23, UNKNOWN = 999 };
enum { GPUS = 8, INSTANCES = 8, PARTS = 8 };

typedef struct { int32_t used, profile, start, id; int32_t parts[PARTS]; } Instance; /* parts: compute profile + 1 */
typedef struct {
    char uuid[80], name[96];
    int32_t mode, pending, needs_reset, process, process_instance;
    Instance instances[INSTANCES];
} Gpu;
/* What a GPU does, as telemetry reads it; GPM has what the last sample and this one have in common. */
typedef struct {
    int64_t used, energy_mj, link_kib, instance_used[INSTANCES];
    int32_t lost, hangs, busy, moving, power_mw, celsius, reasons, gpm, sm, tensor, dram;
    int32_t corrected, uncorrected, replays, remap_failed, pcie_kib, xids, codes[64];
} Activity;
typedef struct {
    int32_t count, calls, fail_at, fail_with, lie_at, kill_before, kill_after;
    Gpu gpus[GPUS];
    Activity activity[GPUS];
} State;
typedef struct { uint32_t start, size; } Placement;
typedef struct { uint32_t version, id, p2p, slices, count, sms, copy, decode, encode, jpeg, ofa; unsigned long long mb; char name[96]; } Profile;
typedef struct { uint32_t version, id, slices, count, sms, copy, decode, encode, jpeg, ofa; char name[96]; } ComputeProfile;
typedef struct { void *device; uint32_t id, profile; Placement placement; } InstanceInfo;
typedef struct { uint32_t pid; unsigned long long memory; uint32_t instance, compute; } Process;

/* By NVML_GPU_INSTANCE_PROFILE_*: the driver's id, compute slices, how many, memory slots, where they start. */
static const struct { int number, id, slices, count, size, mb; const char *name; int starts[8]; } PROFILES[] = {
    {0, 19, 1, 7, 1, 9984, "MIG 1g.10gb", {0, 1, 2, 3, 4, 5, 6, -1}},
    {1, 14, 2, 3, 2, 20096, "MIG 2g.20gb", {0, 2, 4, -1}},
    {2, 9, 3, 2, 4, 40448, "MIG 3g.40gb", {0, 4, -1}},
    {3, 5, 4, 1, 4, 40448, "MIG 4g.40gb", {0, -1}},
    {4, 0, 7, 1, 8, 80896, "MIG 7g.80gb", {0, -1}},
    {9, 15, 1, 4, 2, 20096, "MIG 1g.20gb", {0, 2, 4, 6, -1}},
};
enum { KINDS = sizeof PROFILES / sizeof *PROFILES };
static const int COMPUTE_SLICES[] = {1, 2, 3, 4, 7}; /* by NVML_COMPUTE_INSTANCE_PROFILE_* and its id */

static State *state(void) {
    static State *mapped;
    static char from[4096];
    const char *path = getenv("NVML_STANDIN_STATE");
    if (!path) return NULL;
    if (mapped && !strcmp(path, from)) return mapped;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return NULL;
    void *at = mmap(NULL, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (at == MAP_FAILED) return NULL;
    strncpy(from, path, sizeof from - 1);
    return mapped = at;
}

static int begins(int *lies) { /* before a change: a return code */
    State *s = state();
    s->calls++;
    *lies = s->calls == s->lie_at;
    if (s->calls == s->kill_before) raise(SIGKILL);
    /* From that call on where it is negative. */
    return s->calls == s->fail_at || (s->fail_at < 0 && s->calls >= -s->fail_at) ? s->fail_with : OK;
}
static int ends(void) {
    if (state()->calls == state()->kill_after) raise(SIGKILL);
    return OK;
}
#define CHANGE(what) do { int lies, code = begins(&lies); if (code) return code; if (!lies) { what; } return ends(); } while (0)

static int kind_of(int id) { for (int k = 0; k < KINDS; k++) if (PROFILES[k].id == id) return k; return -1; }
static Gpu *owner(Instance *i) { return &state()->gpus[((char *)i - (char *)state()->gpus) / sizeof(Gpu)]; }
static int busy(Gpu *g, Instance *i) { return g->process && (!i || g->process_instance == i->id); }

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char text[32]; } Pci;
typedef struct { unsigned long long total, free, used; } Memory;

int nvmlInit_v2(void) { return state() ? OK : UNINITIALIZED; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return state() ? OK : UNINITIALIZED; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) {
    return code == IN_USE ? "In use by another client" : code == NO_ROOM ? "Insufficient Resources"
         : code == UNSUPPORTED ? "Not Supported" : code == NOT_FOUND ? "Not Found" : "Unknown Error";
}
int nvmlDeviceGetCount_v2(unsigned *count) { *count = state()->count; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned at, Gpu **gpu) {
    if ((int)at >= state()->count) return INVALID;
    if (state()->activity[at].lost) return LOST;
    *gpu = &state()->gpus[at];
    return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Gpu **gpu) {
    for (int at = 0; at < state()->count; at++)
        if (!strcmp(uuid, state()->gpus[at].uuid)) { *gpu = &state()->gpus[at]; return OK; }
    return NOT_FOUND;
}
/* A handle is that of a GPU, or of an instance on it. */
static int is_gpu(void *handle) { return ((char *)handle - (char *)state()->gpus) % sizeof(Gpu) == 0; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    Instance *i = handle;
    if (is_gpu(handle)) strncpy(text, ((Gpu *)handle)->uuid, size);
    else snprintf(text, size, "MIG-%08x-0000-0000-0000-0000000000%02x", (int)(owner(i) - state()->gpus), (uint8_t)i->id);
    return OK;
}
int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    if (is_gpu(handle)) strncpy(text, ((Gpu *)handle)->name, size);
    else snprintf(text, size, "%s %s", owner(handle)->name, PROFILES[kind_of(((Instance *)handle)->profile)].name);
    return OK;
}
int nvmlDeviceGetMigMode(Gpu *gpu, unsigned *now, unsigned *next) { *now = gpu->mode; *next = gpu->pending; return OK; }

static int number(Gpu *gpu) { return (int)(gpu - state()->gpus); }
int nvmlDeviceGetIndex(Gpu *gpu, unsigned *at) { *at = number(gpu); return OK; }
int nvmlDeviceGetMinorNumber(Gpu *gpu, unsigned *minor) { *minor = number(gpu); return OK; }
int nvmlDeviceGetCudaComputeCapability(Gpu *gpu, int *major, int *minor) { (void)gpu; *major = 9, *minor = 0; return OK; }
int nvmlDeviceGetMemoryInfo(void *handle, Memory *out) {
    Gpu *gpu = is_gpu(handle) ? handle : owner(handle);
    Activity *a = &state()->activity[gpu - state()->gpus];
    unsigned long long total = 80ull << 30, used = a->used;
    if (handle != gpu) {
        total = (unsigned long long)PROFILES[kind_of(((Instance *)handle)->profile)].mb << 20;
        used = a->instance_used[(Instance *)handle - gpu->instances];
    }
    *out = (Memory){total, total - used, used};
    return OK;
}
int nvmlDeviceGetPciInfo_v3(Gpu *gpu, Pci *out) {
    memset(out, 0, sizeof *out);
    out->bus = 0x1a + 0x10 * number(gpu);
    snprintf(out->text, sizeof out->text, "00000000:%02X:00.0", out->bus);
    snprintf(out->legacy, sizeof out->legacy, "0000:%02X:00.0", out->bus);
    return OK;
}
/* Pairs are linked, 0 with 1 and so on, by one NVLink; the others by the processor. */
int nvmlDeviceGetTopologyCommonAncestor(Gpu *a, Gpu *b, int *level) { *level = a == b ? 0 : 40; return OK; }
int nvmlDeviceGetNvLinkState(Gpu *gpu, unsigned link, int *up) {
    if (link) return INVALID;
    *up = (number(gpu) ^ 1) < state()->count;
    return OK;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Gpu *gpu, unsigned link, Pci *out) {
    return link ? INVALID : nvmlDeviceGetPciInfo_v3(&state()->gpus[number(gpu) ^ 1], out);
}

int nvmlDeviceSetMigMode(Gpu *gpu, unsigned mode, unsigned *activation) {
    *activation = OK;
    for (int at = 0; at < INSTANCES; at++) if (gpu->instances[at].used) return IN_USE;
    if (busy(gpu, NULL)) return IN_USE;
    CHANGE(gpu->pending = mode; if (!gpu->needs_reset) gpu->mode = mode);
}

int nvmlDeviceGetGpuInstanceProfileInfoV(Gpu *gpu, unsigned number, Profile *out) {
    if (!gpu->mode) return UNSUPPORTED;
    for (int k = 0; k < KINDS; k++) {
        if (PROFILES[k].number != (int)number) continue;
        out->id = PROFILES[k].id, out->slices = PROFILES[k].slices, out->count = PROFILES[k].count, out->mb = PROFILES[k].mb;
        strcpy(out->name, PROFILES[k].name);
        return OK;
    }
    return UNSUPPORTED;
}
int nvmlDeviceGetGpuInstances(Gpu *gpu, unsigned profile, Instance **out, unsigned *count) {
    *count = 0;
    for (int at = 0; at < INSTANCES; at++)
        if (gpu->instances[at].used && gpu->instances[at].profile == (int)profile) out[(*count)++] = &gpu->instances[at];
    return OK;
}
int nvmlGpuInstanceGetInfo(Instance *i, InstanceInfo *out) {
    out->device = owner(i), out->id = i->id, out->profile = i->profile;
    out->placement = (Placement){i->start, PROFILES[kind_of(i->profile)].size};
    return OK;
}
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(Gpu *gpu, unsigned profile, Placement *out, unsigned *count) {
    int k = kind_of(profile), n = 0;
    if (!gpu->mode || k < 0) return UNSUPPORTED;
    for (; PROFILES[k].starts[n] >= 0; n++)
        if (out) out[n] = (Placement){PROFILES[k].starts[n], PROFILES[k].size};
    *count = n;
    return OK;
}
int nvmlDeviceCreateGpuInstanceWithPlacement(Gpu *gpu, unsigned profile, const Placement *at, Instance **out) {
    int k = kind_of(profile), slices = 0, slots = 0, legal = 0;
    Instance *room = NULL;
    if (!gpu->mode || k < 0) return UNSUPPORTED;
    for (int n = 0; PROFILES[k].starts[n] >= 0; n++) legal |= PROFILES[k].starts[n] == (int)at->start;
    if (!legal || (int)at->size != PROFILES[k].size) return INVALID;
    for (int n = 0; n < INSTANCES; n++) {
        Instance *i = &gpu->instances[n];
        if (!i->used) { room = room ? room : i; continue; }
        int other = kind_of(i->profile);
        slices += PROFILES[other].slices, slots |= ((1 << PROFILES[other].size) - 1) << i->start;
    }
    if (!room || slices + PROFILES[k].slices > 7 || (slots & (((1 << at->size) - 1) << at->start))) return NO_ROOM;
    *out = room;
    CHANGE(memset(room, 0, sizeof *room); room->profile = profile; room->start = at->start;
           room->id = 1 + (int)(room - gpu->instances); room->used = 1);
}
int nvmlGpuInstanceDestroy(Instance *i) {
    for (int n = 0; n < PARTS; n++) if (i->parts[n]) return IN_USE;
    if (busy(owner(i), i)) return IN_USE;
    CHANGE(i->used = 0);
}

int nvmlGpuInstanceGetComputeInstanceProfileInfoV(Instance *i, unsigned number, unsigned engine, ComputeProfile *out) {
    (void)engine;
    int whole = PROFILES[kind_of(i->profile)].slices;
    if (number >= sizeof COMPUTE_SLICES / sizeof *COMPUTE_SLICES || COMPUTE_SLICES[number] > whole) return UNSUPPORTED;
    out->id = number, out->slices = COMPUTE_SLICES[number], out->count = whole / COMPUTE_SLICES[number];
    return OK;
}
int nvmlGpuInstanceGetComputeInstances(Instance *i, unsigned profile, int32_t **out, unsigned *count) {
    *count = 0;
    for (int n = 0; n < PARTS; n++) if (i->parts[n] == (int)profile + 1) out[(*count)++] = &i->parts[n];
    return OK;
}
int nvmlGpuInstanceCreateComputeInstance(Instance *i, unsigned profile, int32_t **out) {
    int slices = COMPUTE_SLICES[profile], n = 0;
    for (int each = 0; each < PARTS; each++) if (i->parts[each]) slices += COMPUTE_SLICES[i->parts[each] - 1];
    if (slices > PROFILES[kind_of(i->profile)].slices) return NO_ROOM;
    while (i->parts[n]) n++;
    *out = &i->parts[n];
    CHANGE(i->parts[n] = profile + 1);
}
int nvmlComputeInstanceDestroy(int32_t *part) {
    Gpu *gpu = &state()->gpus[((char *)part - (char *)state()->gpus) / sizeof(Gpu)];
    for (int n = 0; n < INSTANCES; n++) {
        Instance *i = &gpu->instances[n];
        if (part >= i->parts && part < i->parts + PARTS && busy(gpu, i)) return IN_USE;
    }
    CHANGE(*part = 0);
}

int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *out) {
    unsigned room = *count, there = gpu->process != 0;
    *count = there;
    if (!there) return OK;
    if (room < there) return TOO_SMALL;
    out[0] = (Process){gpu->process, 1 << 30, gpu->process_instance ? (uint32_t)gpu->process_instance : 0xFFFFFFFF, 0};
    return OK;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *out) { (void)gpu, (void)out; *count = 0; return UNSUPPORTED; }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *out) { (void)gpu, (void)out; *count = 0; return OK; }

typedef struct { unsigned gpu, memory; } Rates;
typedef struct { uint32_t field, scope; int64_t at, took; int type, code; union { uint32_t ui; unsigned long long ull; double d; } value; } Field;
typedef struct { Gpu *gpu; Instance *instance; } Sample;
typedef struct { uint32_t metric; int code; double value; char *info[3]; } Metric;
typedef struct { uint32_t version, count; Sample *before, *after; Metric metrics[477]; } Metrics;
typedef struct { Gpu *gpu; unsigned long long type, data; uint32_t instance, compute; } Event;

static Activity *activity(Gpu *gpu) {
    Activity *a = &state()->activity[number(gpu)];
    while (a->hangs) pause();
    return a;
}
int nvmlDeviceGetUtilizationRates(Gpu *gpu, Rates *out) {
    if (gpu->mode) return UNSUPPORTED;
    *out = (Rates){activity(gpu)->busy, activity(gpu)->moving};
    return OK;
}
int nvmlDeviceGetPowerUsage(Gpu *gpu, unsigned *out) { *out = activity(gpu)->power_mw; return OK; }
int nvmlDeviceGetTotalEnergyConsumption(Gpu *gpu, unsigned long long *out) { *out = activity(gpu)->energy_mj; return OK; }
int nvmlDeviceGetTemperature(Gpu *gpu, int sensor, unsigned *out) { (void)sensor; *out = activity(gpu)->celsius; return OK; }
int nvmlDeviceGetPcieReplayCounter(Gpu *gpu, unsigned *out) { *out = activity(gpu)->replays; return OK; }
int nvmlDeviceGetPcieThroughput(Gpu *gpu, int way, unsigned *out) { (void)way; *out = activity(gpu)->pcie_kib; return OK; }
int nvmlDeviceGetCurrentClocksEventReasons(Gpu *gpu, unsigned long long *out) { *out = activity(gpu)->reasons; return OK; }
int nvmlDeviceGetTotalEccErrors(Gpu *gpu, int kind, int since, unsigned long long *out) {
    (void)since;
    *out = kind ? activity(gpu)->uncorrected : activity(gpu)->corrected;
    return OK;
}
int nvmlDeviceGetRemappedRows(Gpu *gpu, unsigned *fixed, unsigned *bad, unsigned *pending, unsigned *failed) {
    *fixed = *bad = *pending = 0, *failed = activity(gpu)->remap_failed;
    return OK;
}
int nvmlDeviceGetFieldValues(Gpu *gpu, int count, Field *fields) {
    Activity *a = activity(gpu);
    for (int at = 0; at < count; at++) {
        uint32_t id = fields[at].field;
        fields[at].code = id == 82 || id == 138 || id == 139 ? OK : UNSUPPORTED;
        if (id == 82) fields[at].value.ui = a->celsius + 5;
        else fields[at].value.ull = a->link_kib;
    }
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(Gpu *gpu, unsigned *count) { *count = gpu->mode ? 7 : 0; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(Gpu *gpu, unsigned at, Instance **out) {
    /* Instances without a compute instance are no devices. */
    if (at >= INSTANCES || !gpu->instances[at].used || !gpu->instances[at].parts[0]) return NOT_FOUND;
    *out = &gpu->instances[at];
    return OK;
}
int nvmlDeviceGetGpuInstanceId(Instance *i, unsigned *id) { *id = i->id; return OK; }
int nvmlDeviceGetGpuInstanceById(Gpu *gpu, unsigned id, Instance **out) {
    for (int at = 0; at < INSTANCES; at++)
        if (gpu->instances[at].used && gpu->instances[at].id == (int)id) { *out = &gpu->instances[at]; return OK; }
    return NOT_FOUND;
}

int nvmlGpmQueryDeviceSupport(Gpu *gpu, uint32_t *out) { out[1] = activity(gpu)->gpm; return OK; }
int nvmlGpmSampleAlloc(Sample **out) { *out = calloc(1, sizeof(Sample)); return OK; }
int nvmlGpmSampleFree(Sample *sample) { free(sample); return OK; }
int nvmlGpmSampleGet(Gpu *gpu, Sample *sample) { sample->gpu = gpu; return gpu->mode ? UNSUPPORTED : OK; }
int nvmlGpmMigSampleGet(Gpu *gpu, unsigned id, Sample *sample) {
    sample->gpu = gpu;
    return nvmlDeviceGetGpuInstanceById(gpu, id, &sample->instance);
}
int nvmlGpmMetricsGet(Metrics *asked) {
    Activity *a = activity(asked->after->gpu);
    for (unsigned at = 0; at < asked->count; at++) {
        Metric *m = &asked->metrics[at];
        m->code = OK;
        switch (m->metric) {
        case 1: m->value = a->busy; break;
        case 2: m->value = a->sm; break;
        case 5: m->value = a->tensor; break;
        case 10: m->value = a->dram; break;
        case 20: case 21: m->value = a->pcie_kib / 1024.0; break;
        case 60: case 61: m->value = a->link_kib / 1024.0; break;
        default: m->code = UNSUPPORTED;
        }
    }
    return OK;
}

/* One set of events for a process: XIDs that were not read yet, of any GPU that it has registered. */
static int registered[GPUS];
int nvmlEventSetCreate(void **set) { *set = registered; return OK; }
int nvmlDeviceRegisterEvents(Gpu *gpu, unsigned long long kinds, void *set) {
    (void)kinds, (void)set;
    registered[number(gpu)] = 1;
    return OK;
}
int nvmlEventSetWait_v2(void *set, Event *out, unsigned limit) {
    (void)set, (void)limit;
    for (int at = 0; at < state()->count; at++) {
        Activity *a = &state()->activity[at];
        if (!registered[at] || a->xids <= 0) continue;
        a->xids--;
        *out = (Event){&state()->gpus[at], 8, a->codes[a->xids % 64], 0xFFFFFFFF, 0xFFFFFFFF};
        return OK;
    }
    return TIMEOUT;
}
