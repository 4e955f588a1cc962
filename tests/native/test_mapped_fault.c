// A mapped file shrinks: what the process says before it ends, by which signal, and when that is none of our business.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lanewise.h"
#include "thread_pool.h"

static int failed, passed;
static size_t page;
static char* cut;    // two pages of a file that has none any more
static char* other;  // likewise

static void expect(bool ok, const char* what, const char* said) {
    ++*(ok ? &passed : &failed);
    if (!ok) printf("%s; it said '%s'\n", what, said);
}

static char* map_and_cut(void) {
    char name[] = "/tmp/lanewise-fault-XXXXXX";
    const int file = mkstemp(name);
    if (file < 0 || unlink(name) != 0 || ftruncate(file, (off_t)(2 * page)) != 0) exit(2);
    char* mapping = mmap(NULL, 2 * page, PROT_READ, MAP_SHARED, file, 0);
    if (mapping == MAP_FAILED || ftruncate(file, 0) != 0) exit(2);
    close(file);
    return mapping;
}

static volatile char read_byte;

static void* read_it(void* address) {
    read_byte = *(volatile char*)address;
    return NULL;
}

static void read_cut(void) { read_it(cut + page); }
static void read_other(void) { read_it(other); }
static void read_end(void) { read_it(cut + 2 * page - 1); }
static void send(void) { raise(SIGBUS); }
static void read_unguarded(void) {
    lw_unguard_mapping(cut);
    read_it(cut);
}

static void read_in_a_thread_of_ours(void) {
    pthread_t thread;
    if (!lw_start_thread(&thread, NULL, read_it, cut)) exit(2);
    pthread_join(thread, NULL);
}

// All at once: whoever is first ends the process, and is the only one to say why.
static void read_in_many_threads(void) {
    pthread_t threads[8];
    for (int i = 0; i < 8; ++i)
        if (!lw_start_thread(&threads[i], NULL, read_it, cut)) exit(2);
    for (int i = 0; i < 8; ++i) pthread_join(threads[i], NULL);
}

static void hold_on(int signal) {
    (void)signal;
    _exit(42);
}

static void know_where(int signal, siginfo_t* info, void* context) {
    (void)signal, (void)context;
    _exit(info->si_addr == other ? 43 : 44);
}

static void before_all(int how) {
    struct sigaction action = {.sa_handler = how == 0 ? SIG_DFL : how == 1 ? hold_on : SIG_IGN};
    if (how == 2) action = (struct sigaction){.sa_sigaction = know_where, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, NULL);
}

// Runs `act` in a process whose SIGBUS was `how` before the library was asked to guard `cut`: its wait status.
static int run(int how, void (*act)(void), char said[512]) {
    int ends[2];
    if (pipe(ends) != 0) exit(2);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        before_all(how);
        if (lw_guard_mapping(cut, 2 * page, "/models/a\nb/model.safetensors") != LW_OK) _exit(2);
        act();
        _exit(0);
    }
    close(ends[1]);
    ssize_t n, all = 0;
    while ((n = read(ends[0], said + all, (size_t)(511 - all))) > 0) all += n;
    said[all] = 0;
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return status;
}

static void test_line(void (*act)(void), const char* what) {
    char said[512];
    const int status = run(0, act, said);
    const char* end = strchr(said, '\n');
    expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS, what, said);
    expect(strncmp(said, "lanewise: /models/a?b/model.safetensors: ", 41) == 0 && strstr(said, "by rename") != NULL,
           what, said);
    expect(end != NULL && end[1] == 0, "it is one line", said);
}

static void test_silence(int how, void (*act)(void), bool signalled, int code, const char* what) {
    char said[512];
    const int status = run(how, act, said);
    expect(signalled ? WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS : WEXITSTATUS(status) == code, what, said);
    expect(said[0] == 0, what, said);
}

int main(void) {
    page = (size_t)sysconf(_SC_PAGESIZE);
    cut = map_and_cut();
    other = map_and_cut();
    test_line(read_cut, "a guarded file that shrank is named");
    test_line(read_end, "to its last byte");
    test_line(read_in_a_thread_of_ours, "also by a thread that blocks signals");
    for (int i = 0; i < 50; ++i) test_line(read_in_many_threads, "and once, however many read it");
    test_silence(0, read_other, true, 0, "another mapping ends the process as before");
    test_silence(0, send, true, 0, "so does a signal that is sent");
    test_silence(0, read_unguarded, true, 0, "and a file that is guarded no more");
    test_silence(1, read_other, false, 42, "a handler of before is called for another mapping");
    test_silence(2, read_other, false, 43, "and is told where");
    test_silence(1, send, false, 42, "and for a signal that is sent");
    test_silence(3, send, false, 0, "what was ignored is ignored");
    test_silence(3, read_other, true, 0, "but a fault cannot be");
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
