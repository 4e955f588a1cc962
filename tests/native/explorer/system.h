// The system as sources see it that are explored: included before everything else, it gives its calls names of ours.
#ifndef EXPLORER_SYSTEM_H
#define EXPLORER_SYSTEM_H

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void* explored_malloc(size_t bytes);
void* explored_calloc(size_t n, size_t bytes);
void* explored_aligned_alloc(size_t alignment, size_t bytes);
void explored_free(void* block);
void* explored_memset(void* to, int value, size_t bytes);
void* explored_memcpy(void* to, const void* from, size_t bytes);
char* explored_strcpy(char* to, const char* from);
int explored_snprintf(char* to, size_t bytes, const char* format, ...);
int explored_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument);
int explored_join(pthread_t thread, void** result);
int explored_lock(pthread_mutex_t* mutex);
int explored_unlock(pthread_mutex_t* mutex);
int explored_wait(pthread_cond_t* condition, pthread_mutex_t* mutex);
int explored_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const struct timespec* until);
int explored_signal(pthread_cond_t* condition);
int explored_clock(clockid_t clock, struct timespec* out);
int explored_yield(void);
long explored_syscall(long number, void* address, int operation, unsigned value, ...);

#define malloc explored_malloc
#define calloc explored_calloc
#define aligned_alloc explored_aligned_alloc
#define free explored_free
#undef memset
#define memset explored_memset
#undef memcpy
#define memcpy explored_memcpy
#undef strcpy
#define strcpy explored_strcpy
#undef snprintf
#define snprintf explored_snprintf
#define pthread_create explored_create
#define pthread_join explored_join
#define pthread_mutex_lock explored_lock
#define pthread_mutex_unlock explored_unlock
#define pthread_cond_wait explored_wait
#define pthread_cond_timedwait explored_timedwait
#define pthread_cond_signal explored_signal
#define pthread_cond_broadcast not_explored
#define clock_gettime explored_clock
#define sched_yield explored_yield
#define syscall explored_syscall
// What neither shares memory nor waits.
#define pthread_attr_init(attributes) ((void)(attributes), 0)
#define pthread_attr_destroy(attributes) ((void)(attributes))
#define pthread_attr_setaffinity_np(attributes, bytes, mask) ((void)(mask))
#define pthread_sigmask(how, set, saved) ((void)(set), (void)(saved))
#define sigfillset(set) ((void)(set))
#define sigdelset(set, signal) ((void)(signal))
#define pthread_mutex_init(mutex, attributes) ((void)(mutex))
#define pthread_mutex_destroy(mutex) ((void)(mutex))
#define pthread_condattr_init(attributes) ((void)(attributes))
#define pthread_condattr_setclock(attributes, clock) ((void)(attributes))
#define pthread_condattr_destroy(attributes) ((void)(attributes))
#define pthread_cond_init(condition, attributes) ((void)(condition))
#define pthread_cond_destroy(condition) ((void)(condition))

#endif
