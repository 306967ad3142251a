// What the files of the test driver share; driver.c says what it does.
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <level_zero/ze_api.h>
#include <level_zero/ze_ddi.h>
#include <level_zero/zes_api.h>
#include <level_zero/zes_ddi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>


#define CALL static ze_result_t ZE_APICALL
#define OK ZE_RESULT_SUCCESS
#define FAILS(function) do { ze_result_t wanted = failure(function); if (wanted) return wanted; } while (0)
#define OBJECT(result, ...) return (fprintf(stderr, "driver: " __VA_ARGS__), fputc('\n', stderr), result)

typedef struct memory { char *start; size_t size; struct memory *next; } memory;
typedef struct { int reached; uint64_t begin, end; } event;
typedef struct { cl_program program; } module;
typedef struct { cl_kernel kernel; cl_uint missing; size_t group[3]; } kernel;  // missing: a bit for each argument
typedef enum { BARRIER, COPY, FILL, LAUNCH } operation;
typedef struct {
    operation what;
    char *to;
    const char *from;
    size_t size;
    uint32_t pattern;
    cl_kernel kernel;
    size_t items[3], group[3];
    event *signal;
} command;
typedef struct { command *commands; int count, room, closed, pending; } list;
typedef struct { list *what; event *fence; } sent;
typedef struct { sent *lists; int count, room; ze_result_t failed; } queue;
typedef struct { char *text; } build_log;

extern cl_device_id device;
extern cl_context context;
extern cl_command_queue runner;

// The result that DRIVER_FAIL wants of a function; a variable that is 1; a variable's number.
ze_result_t failure(const char *function);
int asked(const char *name);
uint64_t number(const char *name, uint64_t missing);
size_t device_number(cl_device_info what);
// The live allocation that these bytes lie in, or 0.
memory *memory_of(const void *pointer, size_t size);

// A table of functions, which the loader takes.
#define TABLE_OF(API, NAME, TYPE, ...)                                                                \
    ZE_DLLEXPORT ze_result_t ZE_APICALL API##Get##NAME##ProcAddrTable(ze_api_version_t v, TYPE *table) { \
        *table = (TYPE){__VA_ARGS__};                                                                 \
        return OK;                                                                                    \
    }
#define TABLE(NAME, TYPE, ...) TABLE_OF(ze, NAME, TYPE, __VA_ARGS__)
