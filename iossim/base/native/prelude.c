/* What every translation begins with: arithmetic as Python has it, and the part of Python's stable ABI that it calls. */
typedef signed char int8_t; typedef unsigned char uint8_t; typedef int int32_t;
typedef long long int64_t; typedef unsigned long long uint64_t;
void *malloc(__SIZE_TYPE__); void *calloc(__SIZE_TYPE__, __SIZE_TYPE__); void free(void *);
double pow(double, double), log1p(double), log(double), exp(double), sqrt(double), ceil(double), floor(double);
static inline void *kept(void *room) { if (!room) __builtin_trap(); return room; }
static inline int64_t over(int64_t a, int64_t b) { int64_t q = a / b; return q - (a % b != 0 && (a < 0) != (b < 0)); }
static inline int64_t modulo(int64_t a, int64_t b) { return a - over(a, b) * b; }
#define LEAST(T, name) static inline T name(T a, T b) { return b < a ? b : a; }
#define MOST(T, name) static inline T name(T a, T b) { return b > a ? b : a; }
LEAST(int64_t, min_q) LEAST(uint64_t, min_Q) LEAST(double, min_d) MOST(int64_t, max_q) MOST(uint64_t, max_Q)
MOST(double, max_d)

typedef struct _object PyObject;
typedef struct {
    void *buf; PyObject *obj; int64_t len, itemsize; int readonly, ndim; char *format;
    int64_t *shape, *strides, *suboffsets; void *internal;
} Py_buffer;
typedef struct { const char *name; void *called; int flags; const char *doc; } PyMethodDef;
extern PyObject *PyExc_TypeError;
void PyErr_SetString(PyObject *, const char *);
PyObject *PyErr_Occurred(void), *PyTuple_GetItem(PyObject *, int64_t), *PyNumber_Index(PyObject *);
int PyObject_GetBuffer(PyObject *, Py_buffer *, int), PyObject_IsTrue(PyObject *);
int PyTuple_SetItem(PyObject *, int64_t, PyObject *);
void PyBuffer_Release(Py_buffer *), Py_DecRef(PyObject *), *PyEval_SaveThread(void), PyEval_RestoreThread(void *);
int64_t PyLong_AsLongLong(PyObject *);
uint64_t PyLong_AsUnsignedLongLong(PyObject *);
double PyFloat_AsDouble(PyObject *);
PyObject *PyLong_FromLongLong(int64_t), *PyLong_FromUnsignedLongLong(uint64_t), *PyFloat_FromDouble(double);
PyObject *PyBool_FromLong(long), *PyTuple_New(int64_t), *Py_BuildValue(const char *, ...);
PyObject *PyCMethod_New(PyMethodDef *, PyObject *, PyObject *, PyObject *);

typedef struct { Py_buffer views[64]; int count; } Taken;
static int64_t take_q(PyObject *given, Taken *taken) { return PyLong_AsLongLong(given); }
static uint64_t take_Q(PyObject *given, Taken *taken) {
    PyObject *whole = PyNumber_Index(given);
    if (!whole) return 0;
    uint64_t value = PyLong_AsUnsignedLongLong(whole);
    Py_DecRef(whole);
    return value;
}
static double take_d(PyObject *given, Taken *taken) { return PyFloat_AsDouble(given); }
static int take_t(PyObject *given, Taken *taken) { return PyObject_IsTrue(given); }
/* An array in C's order of these dimensions, whose elements have one of the formats. */
static Py_buffer *take_array(PyObject *given, Taken *taken, int dimensions, const char *formats, int64_t itemsize) {
    static Py_buffer none;
    Py_buffer *view = &taken->views[taken->count];
    if (PyErr_Occurred() || !given || PyObject_GetBuffer(given, view, 0x3c)) return &none;
    taken->count++;
    while (*formats && *formats != *view->format) formats++;
    if (*formats && view->ndim == dimensions && view->itemsize == itemsize) return view;
    PyErr_SetString(PyExc_TypeError, "an array of another type");
    return &none;
}
static void give_back(Taken *taken) { while (taken->count) PyBuffer_Release(&taken->views[--taken->count]); }
static int is_same(const char *one, const char *other) {
    while (*one && *one == *other) one++, other++;
    return *one == *other;
}
