/* Captions pictures with an exported SavedModel through TensorFlow's C API alone.

   session_captions SAVED_MODEL PICTURE...

   It takes the way of a model server: the session loader, the signature from the meta graph, and
   one request for each picture. It prints a line for each: path, best caption, score, separated by
   tabs. A picture that fails gets a line "error: ..." on standard error, and the next is captioned.
   The argument --wrong-shape stands for a request of shape [1, 1] instead of [1].

   Compile it against the headers and libraries of the TensorFlow wheel:

   tf=$(python -c 'import os, tensorflow as tf; print(os.path.dirname(tf.__file__))')
   cc -I$tf/include session_captions.c -o session_captions -L$tf -Wl,-rpath,$tf \
     -l:libtensorflow_cc.so.2 -l:libtensorflow_framework.so.2

   It exits with 0, with 1 if a picture failed, and with 2 if the model cannot be loaded. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/tf_tstring.h"

typedef struct {
  const uint8_t* data;
  size_t size;
} Bytes;

/* ---- The few messages of the meta graph that are needed, read as protocol buffers. ---- */

static int read_varint(Bytes* left, uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 64 && left->size; shift += 7) {
    uint8_t byte = *left->data++;
    left->size--;
    *value |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) return 1;
  }
  return 0;
}

/* Takes the next field of a message. Sets its number, and its content if it has a length. */
static int next_field(Bytes* left, uint64_t* number, Bytes* content) {
  uint64_t key, value;
  if (!left->size || !read_varint(left, &key)) return 0;
  *number = key >> 3;
  *content = (Bytes){NULL, 0};
  switch (key & 7) {
    case 0:
      return read_varint(left, &value);
    case 1:
      value = 8;
      break;
    case 2:
      if (!read_varint(left, &value)) return 0;
      break;
    case 5:
      value = 4;
      break;
    default:
      return 0;
  }
  if (value > left->size) return 0;
  *content = (Bytes){left->data, value};
  left->data += value;
  left->size -= value;
  return 1;
}

/* Finds the value of `key` in field `number` of a message, which is a map with keys of text. */
static int find_in_map(Bytes message, uint64_t number, const char* key, Bytes* value) {
  uint64_t field, part;
  Bytes entry, content;
  while (next_field(&message, &field, &entry)) {
    int found = 0;
    if (field != number) continue;
    while (next_field(&entry, &part, &content)) {
      if (part == 1) {
        found = content.size == strlen(key) && !memcmp(content.data, key, content.size);
      }
      if (part == 2) *value = content;
    }
    if (found) return 1;
  }
  return 0;
}

/* Finds an input (1) or output (2) of `serving_default`; it has no operation if there is none. */
static TF_Output find_tensor(TF_Graph* graph, Bytes meta, uint64_t side, const char* key) {
  Bytes signature, info, content;
  uint64_t field;
  char name[512] = "";
  /* MetaGraphDef.signature_def is 5, SignatureDef.inputs 1 and outputs 2, TensorInfo.name 1. */
  if (find_in_map(meta, 5, "serving_default", &signature) &&
      find_in_map(signature, side, key, &info)) {
    while (next_field(&info, &field, &content)) {
      if (field == 1) snprintf(name, sizeof name, "%.*s", (int)content.size, content.data);
    }
  }
  char* colon = strrchr(name, ':');
  if (colon) *colon = 0;
  return (TF_Output){TF_GraphOperationByName(graph, name), colon ? atoi(colon + 1) : 0};
}

/* ---- Requests ---- */

static TF_Tensor* string_tensor(const uint8_t* content, size_t size, int rank) {
  const int64_t dims[2] = {1, 1};
  TF_Tensor* tensor = TF_AllocateTensor(TF_STRING, dims, rank, sizeof(TF_TString));
  TF_TString* text = TF_TensorData(tensor);
  TF_StringInit(text);
  TF_StringCopy(text, (const char*)content, size);
  return tensor;
}

static uint8_t* read_file(const char* path, size_t* size) {
  FILE* file = fopen(path, "rb");
  if (!file) return NULL;
  fseek(file, 0, SEEK_END);
  long end = ftell(file);
  rewind(file);
  uint8_t* content = malloc(end > 0 ? end : 1);
  *size = end > 0 ? fread(content, 1, end, file) : 0;
  fclose(file);
  return content;
}

/* Captions one picture and prints its line; returns whether that succeeded. The outputs are the
   captions and scores, both [1, K] with the best first, and the status [1] if the export has it. */
static int caption(TF_Session* session, TF_Output input, const TF_Output* outputs, int count,
                   const char* path, TF_Status* status) {
  size_t size = 0;
  int wrong = !strcmp(path, "--wrong-shape");
  uint8_t* content = wrong ? calloc(1, 1) : read_file(path, &size);
  if (!content) {
    fprintf(stderr, "error: %s: the file cannot be read\n", path);
    return 0;
  }
  TF_Tensor* picture = string_tensor(content, size, wrong ? 2 : 1);
  TF_Tensor* results[3] = {NULL, NULL, NULL};
  TF_SessionRun(session, NULL, &input, &picture, 1, outputs, results, count, NULL, 0, NULL, status);
  TF_DeleteTensor(picture);
  free(content);
  if (TF_GetCode(status) != TF_OK) {
    fprintf(stderr, "error: %s: code %d: %.300s\n", path, TF_GetCode(status), TF_Message(status));
    return 0;
  }
  const TF_TString* text = TF_TensorData(results[0]);
  const float* score = TF_TensorData(results[1]);
  const TF_TString* found = count > 2 ? TF_TensorData(results[2]) : NULL;
  int good = !found || (TF_StringGetSize(found) == 2 &&
                        !memcmp(TF_StringGetDataPointer(found), "ok", 2));
  if (good) {
    printf("%s\t%.*s\t%.5f\n", path, (int)TF_StringGetSize(text), TF_StringGetDataPointer(text),
           score[0]);
  } else {
    fprintf(stderr, "error: %s: %.*s\n", path, (int)TF_StringGetSize(found),
            TF_StringGetDataPointer(found));
  }
  for (int number = 0; number < count; number++) TF_DeleteTensor(results[number]);
  return good;
}

int main(int count, char** arguments) {
  if (count < 3) {
    fprintf(stderr, "usage: session_captions SAVED_MODEL PICTURE...\n");
    return 2;
  }
  const char* tags[] = {"serve"};
  TF_Status* status = TF_NewStatus();
  TF_Graph* graph = TF_NewGraph();
  TF_Buffer* meta = TF_NewBuffer();
  TF_SessionOptions* options = TF_NewSessionOptions();
  TF_Session* session = TF_LoadSessionFromSavedModel(options, NULL, arguments[1], tags, 1, graph,
                                                     meta, status);
  if (TF_GetCode(status) != TF_OK) {
    fprintf(stderr, "error: %s cannot be loaded: %s\n", arguments[1], TF_Message(status));
    return 2;
  }
  const Bytes described = {meta->data, meta->length};
  TF_Output input = find_tensor(graph, described, 1, "image_bytes");
  TF_Output outputs[] = {find_tensor(graph, described, 2, "captions"),
                         find_tensor(graph, described, 2, "scores"),
                         find_tensor(graph, described, 2, "status")};
  if (!input.oper || !outputs[0].oper || !outputs[1].oper) {
    fprintf(stderr, "error: serving_default must have image_bytes, captions and scores.\n");
    return 2;
  }
  int failed = 0;
  for (int number = 2; number < count; number++) {
    failed += !caption(session, input, outputs, outputs[2].oper ? 3 : 2, arguments[number], status);
  }
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteBuffer(meta);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  return failed ? 1 : 0;
}
