/* Reads the lines of a log whose layout is known, as long as they come; learn.py says what a layout is and fast.py what happens between.
 *
 * A layout is fixed bytes with holes in between: digits, a decimal number, a word, hexadecimal digits. A line is read only if it is such
 * bytes from its stamp to its end; what its holes hold goes into the layout's columns, in memory that Python gave and gets back. The first
 * line that has no known layout, stamp or tags ends the scan: nothing is decided here.
 *
 * All bytes may be anybody's: whatever is read lies between a line's start and its newline, whatever is written inside its layout's memory.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { DIGITS, DECIMAL, WORD, HEX, END };          /* what a step ends with */
enum { NOTHING, INT32, INT64, DOUBLE };            /* what is kept of a hole's number */
enum { STAMPED, DATED, BARE };                     /* `[date time tags] `, `date time`, no time */
enum { INTERFACE = 2 };                            /* what fast.py asks for: another number where the records or calls below change */
enum { MOST_LAYOUTS = 1024, MOST_DATES = 32, MOST_TAGS = 512, MOST_HOLES = 48, LONGEST_TAGS = 63, LONGEST_WORD = 64, LONGEST_MESSAGE = 500 };

/* Arrays of int64 on Python's side. */
typedef struct { int64_t text, length, kind, least, most, zeros, store, column; } Step;    /* fixed text, then a hole or the end */
typedef struct { int64_t offsets, heap, heap_size, first, count; } Text;                   /* a column of text: pieces first..first+count */
typedef struct { int64_t hole, text, length; } Piece;                                      /* of a hole, or (hole < 0) fixed text */
typedef struct { int64_t prefix, shows_role, capacity, line, offset, stamp, tags; } Head;  /* the last four: columns; capacity 0: only count */

typedef struct Layout {
    Head head;
    Step *steps;
    Text *texts;
    Piece *pieces;
    char *bytes;
    Py_ssize_t step_count, text_count, piece_count, byte_count;
    Py_buffer memory;
    int64_t rows, count;
    int index;
    struct Layout *next;
} Layout;

typedef struct { const char *start, *end; uint64_t whole; double number; } Hole;

typedef struct {
    PyObject_HEAD
    Layout *layouts[MOST_LAYOUTS];
    Layout *by_start[3][256]; /* by prefix and by the first byte behind it; the most frequent first */
    int layout_count, date_count, next_date, tags_count;
    char dates[MOST_DATES][10]; /* the last ones */
    double midnights[MOST_DATES];
    char tags[MOST_TAGS][LONGEST_TAGS];
    Py_ssize_t tags_length[MOST_TAGS];
} Scanner;

/* matching -------------------------------------------------------------------------------------------------------- */

static int is_digit(char c) { return (unsigned char)(c - '0') < 10; }
static int is_letter(char c) { return (unsigned char)((c | 32) - 'a') < 26; }
static int is_word(char c) { return is_digit(c) || is_letter(c) || c == '_' || c == '-'; }

/* Up to 19 digits, which a uint64 holds. */
static const char *read_digits(const char *p, const char *end, uint64_t *value) {
    const char *limit = end - p > 19 ? p + 19 : end;
    for (; p < limit && is_digit(*p); p++) *value = *value * 10 + (uint64_t)(*p - '0');
    return p;
}

/* At most fifteen digits are a whole number below 2^53, and one division by a power of ten then gives what float() gives of the text. */
static const char *read_decimal(const char *p, const char *end, double *number) {
    static const double powers[] = {1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
    uint64_t value = 0;
    const char *point = read_digits(p, end, &value);
    if (point == p || point - p > 14 || point == end || *point != '.') return NULL;
    const char *stop = read_digits(point + 1, end, &value);
    Py_ssize_t decimals = stop - point - 1;
    if (decimals == 0 || point - p + decimals > 15) return NULL;
    *number = (double)value / powers[decimals];
    return stop;
}

static const char *read_word(const char *p, const char *end, int hex, int64_t least) {
    int digits = 0, letters = 0, others = 0;
    const char *start = p;
    for (; p < end && is_word(*p); p++) {
        if (is_digit(*p)) digits = 1;
        else if (is_letter(*p)) { letters = 1; others |= *p > 'f' || *p < 'a'; }
        else others = 1;
    }
    return digits && letters && p - start >= least && p - start <= LONGEST_WORD && !(hex && others) ? p : NULL;
}

static int matches(const Layout *layout, const char *p, const char *end, Hole *hole) {
    for (const Step *step = layout->steps;; step++, hole++) {
        if (end - p < step->length || memcmp(p, layout->bytes + step->text, (size_t)step->length)) return 0;
        p += step->length;
        hole->start = p;
        switch (step->kind) {
        case END:
            return p == end;
        case DIGITS:
            hole->whole = 0;
            p = read_digits(p, end, &hole->whole);
            if (p - hole->start < step->least || p - hole->start > step->most) return 0;
            if (!step->zeros && *hole->start == '0' && p - hole->start > 1) return 0;
            if (hole->whole > (step->store == INT32 ? INT32_MAX : INT64_MAX)) return 0;
            hole->number = (double)hole->whole;
            break;
        case DECIMAL:
            if (!(p = read_decimal(p, end, &hole->number))) return 0;
            break;
        default:
            if (!(p = read_word(p, end, step->kind == HEX, step->least))) return 0;
        }
        hole->end = p;
    }
}

/* keeping --------------------------------------------------------------------------------------------------------- */

static void put(Layout *layout, int64_t column, const void *value, size_t size) {
    if (column >= 0) memcpy((char *)layout->memory.buf + column + (size_t)layout->rows * size, value, size);
}

/* Where the text of the coming row ends in its column's heap; -1: it does not fit. */
static int64_t put_text(Layout *layout, const Text *text, const Hole *holes) {
    int32_t at;
    char *heap = (char *)layout->memory.buf + text->heap;
    memcpy(&at, (char *)layout->memory.buf + text->offsets + layout->rows * 4, 4);
    if (at < 0 || at > text->heap_size) return -1;
    for (const Piece *piece = layout->pieces + text->first; piece < layout->pieces + text->first + text->count; piece++) {
        const char *from = piece->hole < 0 ? layout->bytes + piece->text : holes[piece->hole].start;
        int64_t length = piece->hole < 0 ? piece->length : holes[piece->hole].end - from;
        if (text->heap_size - at < length) return -1;
        memcpy(heap + at, from, (size_t)length);
        at += (int32_t)length;
    }
    return at;
}

/* 0: the layout's memory is full. */
static int keep(Layout *layout, const Hole *holes, int32_t line, int64_t offset, double stamp, int32_t tags) {
    if (layout->head.capacity) {
        if (layout->rows == layout->head.capacity) return 0;
        for (Py_ssize_t i = 0; i < layout->text_count; i++) {
            int64_t end = put_text(layout, &layout->texts[i], holes);
            int32_t short_end = (int32_t)end;
            if (end < 0) return 0;
            put(layout, layout->texts[i].offsets + 4, &short_end, 4);
        }
        for (const Step *step = layout->steps; step->kind != END; step++) {
            const Hole *hole = holes + (step - layout->steps);
            if (step->store == INT32) {
                int32_t whole = (int32_t)hole->whole;
                put(layout, step->column, &whole, 4);
            } else if (step->store == INT64) put(layout, step->column, &hole->whole, 8);
            else if (step->store == DOUBLE) put(layout, step->column, &hole->number, 8);
        }
        put(layout, layout->head.line, &line, 4);
        put(layout, layout->head.offset, &offset, 8);
        put(layout, layout->head.stamp, &stamp, 8);
        put(layout, layout->head.tags, &tags, 4);
        layout->rows++;
    }
    layout->count++;
    return 1;
}

/* lines ----------------------------------------------------------------------------------------------------------- */

/* `HH:MM:SS` with an optional fraction of at most six digits; NULL where it is no time. */
static const char *read_time(const char *p, const char *end, double *stamp) {
    static const double powers[] = {1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6};
    if (end - p < 8 || p[2] != ':' || p[5] != ':') return NULL;
    for (int i = 0; i < 8; i++) if (i != 2 && i != 5 && !is_digit(p[i])) return NULL;
    int hour = (p[0] - '0') * 10 + p[1] - '0', minute = (p[3] - '0') * 10 + p[4] - '0', second = (p[6] - '0') * 10 + p[7] - '0';
    if (hour > 23 || minute > 59 || second > 60) return NULL;
    *stamp += hour * 3600 + minute * 60 + second;
    p += 8;
    if (p < end && *p == '.') {
        uint64_t fraction = 0;
        const char *stop = read_digits(++p, end, &fraction);
        if (stop == p || stop - p > 6) return NULL;
        *stamp += (double)fraction / powers[stop - p];
        p = stop;
    }
    return p;
}

/* What stands in front of the message, whose start is returned; NULL: a date or tags that are not known yet. */
static const char *read_prefix(const Scanner *self, const char *p, const char *end, int *prefix, double *stamp, int32_t *tags) {
    *prefix = p < end && *p == '[' ? STAMPED : p < end && is_digit(*p) ? DATED : BARE;
    if (*prefix == BARE) return p;
    p += *prefix == STAMPED;
    int date = 0;
    if (end - p < 11 || (p[10] != ' ' && !(*prefix == DATED && p[10] == 'T'))) return NULL;
    while (date < self->date_count && memcmp(self->dates[date], p, 10)) date++;
    if (date == self->date_count) return NULL;
    *stamp = self->midnights[date];
    p = read_time(p + 11, end, stamp);
    if (!p || *prefix == DATED) return p;
    const char *close = memchr(p, ']', (size_t)(end - p > LONGEST_TAGS ? LONGEST_TAGS : end - p));
    if (!close || end - close < 2 || close[1] != ' ') return NULL;
    for (*tags = 0; *tags < self->tags_count; ++*tags)
        if (self->tags_length[*tags] == close - p && !memcmp(self->tags[*tags], p, (size_t)(close - p))) return close + 2;
    return NULL;
}

/* The layout of a message, moved forward among those that start alike if it is the more frequent one. */
static Layout *find(Layout **list, const char *p, const char *end, int role_known, Hole *holes) {
    for (Layout **before = NULL, **at = list; *at; before = at, at = &(*at)->next) {
        Layout *found = *at;
        if ((found->head.shows_role && !role_known) || !matches(found, p, end, holes)) continue;
        if (before && found->count > (*before)->count) {
            Layout *other = *before;
            other->next = found->next;
            found->next = other;
            *before = found;
        }
        return found;
    }
    return NULL;
}

PyDoc_STRVAR(scan_doc, "scan(data, at, line, offset, role_known, bare) -> (at, end, line, full, stamps, first, last)\n\n"
    "Read lines from `at` on, up to one that has no known layout, which ends at `end`. `line`, `offset`: number of the line at `at`, place of\n"
    "`data` in its file. `bare`: lines without `[stamp] ` may be read. `full`: the layout whose memory must be taken first, or -1. `stamps`: how many lines had a time;\n"
    "`first`, `last`: those of the first and the last.");

static PyObject *scan(Scanner *self, PyObject *arguments) {
    Py_buffer data;
    Py_ssize_t at, line_end;
    int line, role_known, bare, prefix = BARE, full = -1;
    long long offset;
    Py_ssize_t stamps = 0;
    double first = 0, last = 0;
    Hole holes[MOST_HOLES + 1];
    if (!PyArg_ParseTuple(arguments, "y*niLpp", &data, &at, &line, &offset, &role_known, &bare)) return NULL;
    const char *begin = data.buf, *stop = begin + data.len;
    if (at < 0) at = 0;
    line_end = at;
    while (at < data.len) {
        const char *p = begin + at, *end = memchr(p, '\n', (size_t)(stop - p));
        double stamp = 0;
        int32_t tags = 0;
        line_end = end ? end - begin : data.len;
        if (!end) break;
        const char *message = read_prefix(self, p, end, &prefix, &stamp, &tags);
        if (!message || end - message > LONGEST_MESSAGE || (prefix != STAMPED && !bare)) break;
        Layout *layout = find(&self->by_start[prefix][(unsigned char)*message], message, end, role_known, holes);
        if (!layout) break;
        if (!keep(layout, holes, line, offset + at, stamp, tags)) {
            full = layout->rows ? layout->index : -1;
            break;
        }
        if (prefix != BARE) {
            if (!stamps++) first = stamp;
            last = stamp;
        }
        line++;
        at = end - begin + 1;
    }
    PyBuffer_Release(&data);
    return Py_BuildValue("nniindd", at, line_end, line, full, stamps, first, last);
}

/* what Python tells ----------------------------------------------------------------------------------------------- */

static PyObject *add_date(Scanner *self, PyObject *arguments) {
    const char *date;
    Py_ssize_t length;
    double midnight;
    if (!PyArg_ParseTuple(arguments, "y#d", &date, &length, &midnight)) return NULL;
    if (length == 10) {
        memcpy(self->dates[self->next_date], date, 10);
        self->midnights[self->next_date] = midnight;
        self->next_date = (self->next_date + 1) % MOST_DATES;
        if (self->date_count < MOST_DATES) self->date_count++;
    }
    Py_RETURN_NONE;
}

static PyObject *add_tags(Scanner *self, PyObject *arguments) {
    const char *tags;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(arguments, "y#", &tags, &length)) return NULL;
    if (length < LONGEST_TAGS && self->tags_count < MOST_TAGS) {
        memcpy(self->tags[self->tags_count], tags, (size_t)length);
        self->tags_length[self->tags_count++] = length;
    }
    return PyLong_FromLong(self->tags_count);
}

static void *copy(const char *bytes, Py_ssize_t size) {
    char *out = PyMem_Malloc((size_t)size + 1);
    if (out) memcpy(out, bytes, (size_t)size);
    return out;
}

static void free_layout(Layout *layout) {
    if (layout->memory.buf) PyBuffer_Release(&layout->memory);
    PyMem_Free(layout->steps), PyMem_Free(layout->texts), PyMem_Free(layout->pieces), PyMem_Free(layout->bytes), PyMem_Free(layout);
}

static int inside(int64_t at, int64_t size, int64_t whole) { return at >= 0 && size >= 0 && size <= whole && at <= whole - size; }

/* Whether all that the layout refers to is where it says. */
static int is_sound(const Layout *layout) {
    const Head *head = &layout->head;
    int64_t memory = layout->memory.buf ? layout->memory.len : 0, rows = head->capacity, holes = layout->step_count - 1;
    if (holes < 0 || holes > MOST_HOLES || head->prefix < STAMPED || head->prefix > BARE || rows < 0 || rows > memory) return 0;
    for (Py_ssize_t i = 0; i <= holes; i++) {
        const Step *step = &layout->steps[i];
        int64_t size = step->store == NOTHING ? 0 : step->store == INT32 ? 4 : 8;
        if (!inside(step->text, step->length, layout->byte_count) || (step->kind == END) != (i == holes) || step->least < 1) return 0;
        if (step->store < NOTHING || step->store > DOUBLE || (size && !inside(step->column, rows * size, memory))) return 0;
    }
    for (Py_ssize_t i = 0; i < layout->text_count; i++) {
        const Text *text = &layout->texts[i];
        if (!inside(text->offsets, (rows + 1) * 4, memory) || !inside(text->heap, text->heap_size, memory) || text->heap_size > INT32_MAX) return 0;
        if (!inside(text->first, text->count, layout->piece_count)) return 0;
    }
    for (Py_ssize_t i = 0; i < layout->piece_count; i++) {
        const Piece *piece = &layout->pieces[i];
        if (piece->hole >= holes || (piece->hole < 0 && !inside(piece->text, piece->length, layout->byte_count))) return 0;
    }
    return (head->line < 0 || inside(head->line, rows * 4, memory)) && (head->offset < 0 || inside(head->offset, rows * 8, memory)) &&
           (head->stamp < 0 || inside(head->stamp, rows * 8, memory)) && (head->tags < 0 || inside(head->tags, rows * 4, memory)) &&
           (layout->steps[0].length > 0 || holes == 0);
}

PyDoc_STRVAR(add_layout_doc, "add_layout(bytes, head, steps, texts, pieces, memory) -> index, or -1 where there are too many\n\n"
    "The four in the middle are arrays of int64, as the records in _scan.c say; `memory` is a writable buffer, zero where a text's offsets begin, or None.");

static PyObject *add_layout(Scanner *self, PyObject *arguments) {
    const char *bytes, *head, *steps, *texts, *pieces;
    Py_ssize_t byte_size, head_size, step_size, text_size, piece_size;
    PyObject *memory;
    if (!PyArg_ParseTuple(arguments, "y#y#y#y#y#O", &bytes, &byte_size, &head, &head_size, &steps, &step_size, &texts, &text_size, &pieces, &piece_size, &memory))
        return NULL;
    if (self->layout_count == MOST_LAYOUTS) return PyLong_FromLong(-1);
    Layout *layout = PyMem_Calloc(1, sizeof *layout);
    if (!layout) return PyErr_NoMemory();
    if (memory != Py_None && PyObject_GetBuffer(memory, &layout->memory, PyBUF_WRITABLE)) {
        layout->memory.buf = NULL;
        free_layout(layout);
        return NULL;
    }
    layout->bytes = copy(bytes, byte_size), layout->byte_count = byte_size;
    layout->steps = copy(steps, step_size), layout->step_count = step_size / (Py_ssize_t)sizeof(Step);
    layout->texts = copy(texts, text_size), layout->text_count = text_size / (Py_ssize_t)sizeof(Text);
    layout->pieces = copy(pieces, piece_size), layout->piece_count = piece_size / (Py_ssize_t)sizeof(Piece);
    int whole = layout->bytes && layout->steps && layout->texts && layout->pieces && head_size == sizeof(Head);
    if (whole) memcpy(&layout->head, head, sizeof(Head));
    if (!whole || !is_sound(layout)) {
        free_layout(layout);
        PyErr_SetString(PyExc_ValueError, "not a layout");
        return NULL;
    }
    char start = layout->steps[0].length ? layout->bytes[layout->steps[0].text] : '\n'; /* which is what an empty message starts with */
    Layout **at = &self->by_start[layout->head.prefix][(unsigned char)start];
    while (*at) at = &(*at)->next;
    *at = layout;
    layout->index = self->layout_count;
    self->layouts[self->layout_count++] = layout;
    return PyLong_FromLong(layout->index);
}

static Layout *layout_at(Scanner *self, int index) {
    if (index >= 0 && index < self->layout_count) return self->layouts[index];
    PyErr_SetString(PyExc_IndexError, "no such layout");
    return NULL;
}

PyDoc_STRVAR(take_doc, "take(index, memory) -> rows\n\nThe rows in a layout's memory, which is let go; `memory`, of the same size, takes its place.");

static PyObject *take(Scanner *self, PyObject *arguments) {
    int index;
    PyObject *memory;
    Py_buffer fresh;
    if (!PyArg_ParseTuple(arguments, "iO", &index, &memory)) return NULL;
    Layout *layout = layout_at(self, index);
    if (!layout || PyObject_GetBuffer(memory, &fresh, PyBUF_WRITABLE)) return NULL;
    if (!layout->memory.buf || fresh.len != layout->memory.len) {
        PyBuffer_Release(&fresh);
        PyErr_SetString(PyExc_ValueError, "memory of another size");
        return NULL;
    }
    PyObject *rows = PyLong_FromLongLong(layout->rows);
    PyBuffer_Release(&layout->memory);
    layout->memory = fresh;
    layout->rows = 0;
    return rows;
}

PyDoc_STRVAR(counts_doc, "counts(index) -> (lines read, rows in memory)");

static PyObject *counts(Scanner *self, PyObject *arguments) {
    int index;
    if (!PyArg_ParseTuple(arguments, "i", &index)) return NULL;
    const Layout *layout = layout_at(self, index);
    return layout ? Py_BuildValue("LL", (long long)layout->count, (long long)layout->rows) : NULL;
}

static void dealloc(Scanner *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    for (int i = 0; i < self->layout_count; i++) free_layout(self->layouts[i]);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *count_lines(PyObject *module, PyObject *arguments) {
    Py_buffer data;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*", &data)) return NULL;
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < data.len; i++) count += ((const char *)data.buf)[i] == '\n';
    PyBuffer_Release(&data);
    return PyLong_FromSsize_t(count);
}

static PyMethodDef functions[] = {{"count_lines", count_lines, METH_VARARGS, "count_lines(data) -> newlines in it."}, {NULL, NULL, 0, NULL}};

static PyMethodDef methods[] = {
    {"scan", (PyCFunction)scan, METH_VARARGS, scan_doc},
    {"add_date", (PyCFunction)add_date, METH_VARARGS, "add_date(b'2026-05-05', midnight): a date that stamps may have; the last few are known."},
    {"add_tags", (PyCFunction)add_tags, METH_VARARGS, "add_tags(b' DP0 TP1') -> how many are known: tags that stamps may have, numbered from 0."},
    {"add_layout", (PyCFunction)add_layout, METH_VARARGS, add_layout_doc},
    {"take", (PyCFunction)take, METH_VARARGS, take_doc},
    {"counts", (PyCFunction)counts, METH_VARARGS, counts_doc},
    {NULL, NULL, 0, NULL}};

static PyType_Slot slots[] = {{Py_tp_dealloc, dealloc}, {Py_tp_methods, methods}, {Py_tp_doc, "Layouts of a log, and the rows read with them."}, {0, NULL}};
static PyType_Spec spec = {"apd_replay.logs._scan.Scanner", sizeof(Scanner), 0, Py_TPFLAGS_DEFAULT, slots};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_scan", "Lines of known layouts, read in C.", 0, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__scan(void) {
    PyObject *made = PyModule_Create(&module);
    PyObject *type = made ? PyType_FromModuleAndSpec(made, &spec, NULL) : NULL;
    if (!type || PyModule_AddObjectRef(made, "Scanner", type) || PyModule_AddIntConstant(made, "INTERFACE", INTERFACE)) Py_CLEAR(made);
    Py_XDECREF(type);
    return made;
}
