// A plugin for QEMU's user emulation (plugin API 1). It counts how often each translated block of instructions is
// executed. For given address ranges it also records the order of the blocks.
//     qemu-aarch64 -plugin libcount_blocks.so,out=FILE[,range=START-END ...] PROGRAM     addresses in hexadecimal
// FILE holds "block ADDRESS INSTRUCTIONS EXECUTIONS" lines and, for the ranges, one "trace" line of block numbers.
// Programs must have one thread: the counters are not atomic.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The used part of the API; Debian has no package with its header.
#define EXPORT __attribute__((visibility("default")))
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_info_t;
typedef uint64_t qemu_plugin_id_t;
typedef void (*tb_trans_cb)(qemu_plugin_id_t, struct qemu_plugin_tb*);
typedef void (*tb_exec_cb)(unsigned vcpu, void* userdata);
enum { NO_REGISTERS = 0, INLINE_ADD_U64 = 0 };
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, tb_trans_cb);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb*, tb_exec_cb, int registers, void* userdata);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb*, int op, void* counter, uint64_t add);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void*), void* userdata);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb*);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb*);
EXPORT int qemu_plugin_version = 1;

typedef struct block {
    uint64_t address, instructions, executions, number;
    struct block* next;
} block;

enum { MAX_RANGES = 512 };
static struct {
    uint64_t start, end;
} ranges[MAX_RANGES];
static size_t n_ranges;
static block *first, **last = &first;
static uint64_t n_blocks;
static uint32_t* trace;
static size_t trace_length, trace_room;
static const char* out_path;

static void follow(unsigned vcpu, void* userdata) {
    (void)vcpu;
    if (trace_length == trace_room) {
        trace_room = trace_room ? 2 * trace_room : 1 << 16;
        trace = realloc(trace, trace_room * sizeof *trace);
        if (trace == NULL) abort();
    }
    trace[trace_length++] = (uint32_t)((block*)userdata)->number;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb* tb) {
    (void)id;
    block* b = calloc(1, sizeof *b);
    if (b == NULL) abort();
    b->address = qemu_plugin_tb_vaddr(tb);
    b->instructions = qemu_plugin_tb_n_insns(tb);
    b->number = n_blocks++;
    *last = b;
    last = &b->next;
    qemu_plugin_register_vcpu_tb_exec_inline(tb, INLINE_ADD_U64, &b->executions, 1);
    for (size_t i = 0; i < n_ranges; ++i)
        if (b->address >= ranges[i].start && b->address < ranges[i].end)
            qemu_plugin_register_vcpu_tb_exec_cb(tb, follow, NO_REGISTERS, b);
}

static void finish(qemu_plugin_id_t id, void* userdata) {
    (void)id, (void)userdata;
    FILE* out = fopen(out_path, "w");
    if (out == NULL) return;  // the reader of the file reports that it is missing
    for (const block* b = first; b; b = b->next)
        fprintf(out, "block %" PRIx64 " %" PRIu64 " %" PRIu64 "\n", b->address, b->instructions, b->executions);
    fputs("trace", out);
    for (size_t i = 0; i < trace_length; ++i) fprintf(out, " %" PRIu32, trace[i]);
    fputs("\n", out);
    fclose(out);
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info_t* info, int argc, char** argv) {
    (void)info;
    for (int i = 0; i < argc; ++i) {
        if (strncmp(argv[i], "out=", 4) == 0)
            out_path = strdup(argv[i] + 4);
        else if (strncmp(argv[i], "range=", 6) == 0 && n_ranges < MAX_RANGES &&
                 sscanf(argv[i] + 6, "%" SCNx64 "-%" SCNx64, &ranges[n_ranges].start, &ranges[n_ranges].end) == 2)
            ++n_ranges;
        else
            return fprintf(stderr, "count_blocks: argument '%s'; accepted: out=FILE, range=START-END\n", argv[i]), 1;
    }
    if (out_path == NULL) return fprintf(stderr, "count_blocks: out=FILE is missing\n"), 1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, finish, NULL);
    return 0;
}
